"""Proves on a user's own script that a budget changes no bit: plainly twice, then within the budget, then compared."""
