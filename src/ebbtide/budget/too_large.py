"""The error of a step that does not fit, in PyTorch's words too: batch finders and ``except`` clauses know those."""

from typing import Any

import torch

from ebbtide.errors import BudgetError

_KNOWN_WORDS = "DefaultCPUAllocator: can't allocate memory"
"""Accelerate and Lightning look for this text, in an error with one argument."""


class StepTooLargeError(BudgetError, torch.OutOfMemoryError):
    """A BudgetError before the optimizer has changed anything: the script may go on with a smaller batch."""

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self._fields = fields
        self.args = (str(self),)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._fields

    def __str__(self) -> str:
        return f"{super().__str__()} (PyTorch's words: {_KNOWN_WORDS})"
