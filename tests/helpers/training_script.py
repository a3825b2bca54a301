"""A script that trains, with what a test puts into it."""

from textwrap import dedent, indent


def training_script(
    before: str = "",
    begins: str = "",
    midway: str = "",
    ends: str = "",
    after: str = "",
    *,
    width: int = 512,
    layers: int = 6,
    rows: int = 256,
    steps: int = 6,
) -> str:
    """AdamW trains layers of this width on random rows. The texts are Python: what runs ``before`` and ``after`` the
    training, and when a ``step``, a number, ``begins``, is ``midway`` between its two passes, and ``ends``."""
    forward = f"optimizer.zero_grad()\nloss = model(torch.randn({rows}, {width})).square().mean()"
    a_step = "\n".join(map(dedent, (begins, forward, midway, "loss.backward()\noptimizer.step()", ends)))
    return "\n".join(
        [
            "import torch",
            dedent(before),
            f"model = torch.nn.Sequential(*[torch.nn.Linear({width}, {width}) for _ in range({layers})])",
            "optimizer = torch.optim.AdamW(model.parameters())",
            f"for step in range({steps}):",
            indent(a_step, "    "),
            dedent(after),
        ]
    )
