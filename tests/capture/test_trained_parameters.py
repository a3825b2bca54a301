"""The numbers that optimizers update in a step: each parameter once, frozen ones and idle optimizers' not at all."""

import torch

from ebbtide.capture.optimizer_events import subscribe, unsubscribe
from ebbtide.capture.optimizer_hooks import OptimizerHooks
from tests.capture.test_closures import Native


def test_what_optimizers_update_is_counted_once() -> None:
    hooks = OptimizerHooks(lambda: None, lambda: None, lambda: None, Native())
    body, head = (torch.nn.Parameter(torch.ones(size)) for size in (4, 3))
    frozen = torch.nn.Parameter(torch.ones(100), requires_grad=False)
    lazy = torch.nn.LazyLinear(5).weight
    subscribe(hooks)
    try:
        torch.optim.SGD([torch.nn.Parameter(torch.ones(50))], lr=0.1)  # never steps
        first = torch.optim.SGD([body, frozen, lazy], lr=0.1)
        assert hooks.trained_parameters == 0
        first.step()
        first.step()
        assert hooks.trained_parameters == 4
        first.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        first.step()
        assert hooks.trained_parameters == 6
        del first
        for _ in range(40):  # with one that updates a part of what another has
            again = torch.optim.AdamW([body, head], lr=0.1), torch.optim.SGD([head], lr=0.1)
            for _ in range(3):
                for optimizer in again:
                    optimizer.step()
        assert hooks.trained_parameters == 7
    finally:
        unsubscribe(hooks)
