"""The start, run and end of a block or a whole program that trains within a budget, or is recorded."""
