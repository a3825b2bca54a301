"""The start, run and end of a block or a whole program that trains within a budget, or is recorded."""

from importlib import import_module

from ebbtide.host.own_thread import new_threads_take_no_signals

with new_threads_take_no_signals():
    import_module("numpy")  # its OpenBLAS begins threads, under the command before the script's first line
