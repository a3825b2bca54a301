"""Other orders of updates than the script's: deferred until somebody looks, or made in the backward pass."""
