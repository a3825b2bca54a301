"""A small training, whose last line tells the bits of what it came to."""

import hashlib

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(6):
    loss = model(torch.randn(256, 512)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
bits = hashlib.sha256()
for parameter in model.parameters():
    bits.update(parameter.detach().numpy().tobytes())
print(f"loss {loss.item():.9f}, parameters {bits.hexdigest()}")
