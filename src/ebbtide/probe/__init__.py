"""Measures this machine: how fast tensors leave memory and come back, and how much that slows operations meanwhile.

It measures what the runtime does (``native/core/moves.cpp``, ``spill_file.cpp``). Two threads copy chunks of 4 MiB with
``O_DIRECT`` between huge pages and an unnamed file. After each copy the pages move. The file's space is reserved and
has been written once. The samples of a figure are spread over the whole measurement, so its spread shows how the
machine drifts.

Beside that, it measures PyTorch's matrix products and the cost of calling an operator (``compute``).
"""
