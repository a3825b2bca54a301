"""What a visit to a machine with a GPU runs; nothing here needs one to be rehearsed."""
