"""Measures this machine: how fast tensors leave memory and come back, and what that costs the operations meanwhile.

What is measured is what the runtime does (``native/core/moves.cpp``, ``spill_file.cpp``): ``O_DIRECT`` between huge
pages and an unnamed file whose space is reserved and already written once, in chunks of 4 MiB, by two threads, without
torch. The samples of a figure are spread over the whole measurement, so that its spread shows how the machine drifts.

With a trace, its operators are called again with their operands in memory and in a file (``placements``, with torch).
"""
