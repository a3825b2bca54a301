"""Places where code reaches memory without an operator: NumPy, DLPack, files. Each tells the arena before it opens."""
