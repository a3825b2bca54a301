"""Where memory is reached without an operator: NumPy, DLPack, files. Each door tells the arena before it opens."""
