"""The threads of Ebbtide's that run, which ``threading`` does not list."""

import sys
from types import FrameType

from ebbtide.host.own_thread import OwnThread


def own_threads() -> list[str]:
    """Return their names, found by what they are in the middle of."""
    names = []
    frame: FrameType | None
    for frame in sys._current_frames().values():
        while frame is not None and not isinstance(frame.f_locals.get("self"), OwnThread):
            frame = frame.f_back
        if frame is not None:
            names.append(frame.f_locals["self"].name)
    return names
