"""A block or a whole program that trains within a budget, or is recorded: how it starts, runs and ends."""
