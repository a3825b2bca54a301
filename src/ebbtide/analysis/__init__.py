"""Analyses of a step's memory from its trace alone, after "Pinpointing the Memory Behaviors of DNN Training"
(ISPASS'21).

They are pure functions: no torch, no clock, no files.

- ``columns`` has what all ask of storages: first and last use, modules, the root of their names.
- ``memory`` has the bytes at each tick, idle or in use, and the contents of the peak.
- ``intervals`` has access-time intervals (ATIs) and their distribution.
- ``swapping`` has the swap rule, for each interval alone and for all of them in a queue.
- ``curves`` shows what more moves or a faster link would gain.
- ``summary`` gathers all of this, and ``terminal`` shows it as a page.
- ``explain`` describes one storage in words, and ``explain_plan`` what a plan does with it.
"""
