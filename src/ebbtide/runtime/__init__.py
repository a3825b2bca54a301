"""The parts that run in a step of training, on the native arena."""
