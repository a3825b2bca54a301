"""Steps of networks, measured: in Ebbtide, in plain PyTorch and by other techniques."""
