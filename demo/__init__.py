"""``make demo``: training under a quarter of the memory, beside plain PyTorch."""
