"""Tells a Python file's owner by its name, so that a storage can name the lines of a library and of the user's program
that made it.

Names are shown without the working directory and without the directory of installed packages. ``~`` is the home
directory. The reason is that people share traces.
"""

import os
import sysconfig
from pathlib import Path

import torch

import ebbtide._torch as _torch

LineRule = tuple[str, bool, int, str]
_NO_FILE, _INSTALLED, _PASSED_OVER = 1, 2, 3  # [Note: lines] in native/torch/lines.hpp; the user's own are 0


def note_lines(notes: bool) -> None:
    """Switch on or off the noting of lines that make storages."""
    _torch.note_lines(line_rules() if notes else [])


def line_rules() -> list[LineRule]:
    """List the rules for the current working directory. The first that fits a file counts."""
    pytorch, ours = Path(torch.__file__).parent, Path(__file__).parents[1]
    rules = [
        *(rule for folder in (pytorch, ours) for rule in _within(folder, _PASSED_OVER, f"{folder.name}/")),
        *_within(Path(sysconfig.get_path("scripts")), _PASSED_OVER, ""),  # `ebbtide` itself, and other launchers
        ("<frozen ", False, _PASSED_OVER, "<frozen "),
        ("<eval_with_key>", False, _PASSED_OVER, "<eval_with_key>"),
        ("<", False, _NO_FILE, "<"),
        ("/site-packages/", True, _INSTALLED, ""),
        ("/dist-packages/", True, _INSTALLED, ""),
    ]
    for name in ("stdlib", "platstdlib"):
        rules += _within(Path(sysconfig.get_path(name)), _PASSED_OVER, "")
    rules += _within(Path.cwd(), 0, "")
    home = os.path.expanduser("~")
    rules += _within(Path(home), 0, "~/") if home != "~" else []
    return [*dict.fromkeys(rules), ("./", False, 0, "")]


def _within(folder: Path, rank: int, shown: str) -> list[LineRule]:
    """Make rules for a folder's name and for its name without links; none for the root, in which everything lies."""
    folders = dict.fromkeys((folder.absolute(), folder.resolve()))
    return [(f"{each}/", False, rank, shown) for each in folders if len(each.parts) > 1]
