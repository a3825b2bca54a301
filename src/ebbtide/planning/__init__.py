"""Planning beside the steps: a recorded step goes to a process that plans, and its answer to the arena."""
