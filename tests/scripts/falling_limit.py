"""Trains five steps, plain or in a session whose limit falls before the third below what an operation needs."""

import sys

import torch

import ebbtide
from ebbtide.host import process
from ebbtide.session import session as session_module

bounded = sys.argv[1] == "bounded"
torch.manual_seed(0)


def train():
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(5):
        if bounded and number == 2:
            rest_bytes = process.resident_bytes() - ebbtide._torch.counters()["reserved_bytes"]
            session._engine.limit_changed(rest_bytes + 6 * 2**20)
        optimizer.zero_grad()
        loss = model(torch.ones(512, 1024)).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())


if bounded:
    there = session_module.free_memory()
    session_module.free_memory = lambda ranks: there
    with ebbtide.Session(policy="demand", progress="off") as session:
        train()
    report = session.report()
    moved = sum(step.evicted_bytes.total for step in report.steps)
    assert report.budget_violated
    assert len(report.steps) == 5
    assert moved > 2**26, moved
else:
    train()
