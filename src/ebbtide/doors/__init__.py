"""Places where code reaches memory without an operator: NumPy, DLPack, files.

Each fetches what it opens onto, and has deferred updates made, before it opens.
"""
