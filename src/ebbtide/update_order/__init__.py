"""Orders of updates other than the script's: deferred until somebody looks, or made in the backward pass."""
