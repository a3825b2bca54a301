"""The step that docs/design.md follows: four layers, plain SGD, and no storage below 64 KiB."""

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
batch = torch.randn(256, 512)


def forward_and_backward() -> None:
    output = model(batch)
    output.backward(output.detach())


for _ in range(8):
    optimizer.zero_grad()
    forward_and_backward()
    optimizer.step()
