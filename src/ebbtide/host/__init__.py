"""Facts of the machine that a process runs on: memory, mounts, spill directories, and the native module."""
