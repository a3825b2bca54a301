"""Ways to record a step in which nothing moves: on what plain PyTorch allocates, or with fake tensors."""
