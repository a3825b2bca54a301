"""Whose a Python file is, by its name, so that what makes a storage can be told by a line of the user's program.

Names are told without the working directory, without the directory that packages are installed in, and with ``~`` for
the home directory: a trace is something that one shares.
"""

import os
import sysconfig
from pathlib import Path

import torch

import ebbtide._torch as _torch

LineRule = tuple[str, bool, int, str]
_NO_FILE, _INSTALLED, _PYTORCH_OR_OURS = 1, 2, 3  # [Note: lines] in native/torch/lines.hpp; the user's own are 0


def note_lines(notes: bool) -> None:
    """Whether, from now on, it is noted which line makes a storage."""
    _torch.note_lines(line_rules() if notes else [])


def line_rules() -> list[LineRule]:
    """For the working directory that there is now. The first that fits a file counts."""
    pytorch, ours = Path(torch.__file__).parent, Path(__file__).parents[1]
    rules = [
        *(rule for folder in (pytorch, ours) for rule in _within(folder, _PYTORCH_OR_OURS, f"{folder.name}/")),
        *_within(Path(sysconfig.get_path("scripts")), _PYTORCH_OR_OURS, ""),  # `ebbtide` itself, and other launchers
        ("<frozen ", False, _PYTORCH_OR_OURS, "<frozen "),
        ("<eval_with_key>", False, _PYTORCH_OR_OURS, "<eval_with_key>"),
        ("<", False, _NO_FILE, "<"),
        ("/site-packages/", True, _INSTALLED, ""),
        ("/dist-packages/", True, _INSTALLED, ""),
    ]
    for name in ("stdlib", "platstdlib"):
        rules += _within(Path(sysconfig.get_path(name)), _INSTALLED, "")
    rules += _within(Path.cwd(), 0, "")
    home = os.path.expanduser("~")
    rules += _within(Path(home), 0, "~/") if home != "~" else []
    return [*dict.fromkeys(rules), ("./", False, 0, "")]


def _within(folder: Path, rank: int, shown: str) -> list[LineRule]:
    """Under its name, and under that which it has without links; nothing of the root, in which everything lies."""
    folders = dict.fromkeys((folder.absolute(), folder.resolve()))
    return [(f"{each}/", False, rank, shown) for each in folders if len(each.parts) > 1]
