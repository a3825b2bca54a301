"""Proves on a user's own script that a budget changes no bit: two plain runs, one within the budget, a comparison."""
