"""Facts of the machine that a process runs on: memory, mounts, spill directories, whether the native module loads."""
