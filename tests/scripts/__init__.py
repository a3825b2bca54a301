"""Scripts that tests run, by their paths."""
