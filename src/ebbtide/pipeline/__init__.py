"""Steps from files to a simulated result: what commands and the API read and try."""
