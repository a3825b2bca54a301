"""Tells what a script's signal handlers raise from our errors: Python calls them wherever the main thread is."""

import signal
import traceback


def came_from_a_handler(error: BaseException) -> bool:
    """Tell whether a signal's handler raised the error."""
    handlers = filter(callable, map(signal.getsignal, signal.valid_signals()))
    codes = [getattr(each, "__code__", getattr(type(each).__call__, "__code__", None)) for each in handlers]
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
