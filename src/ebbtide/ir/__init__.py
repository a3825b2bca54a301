"""The data between recording, planning, running and showing: Trace, Machine, Plan, Schedule, Timeline.

Beside them stand the one accountant (``occupancy``), the independent checker of plans (``check``) and the files
(``files``, ``tiertrace``). Nothing here imports torch. Bytes and nanoseconds are integers.

[Note: ticks]
A step has ticks 0 .. T-1 and steps repeat, so time is a circle of T ticks. Intervals of ticks are half-open.
A *persistent* storage (a parameter) is there before the step and after it: its life is the whole circle. Any other
storage is born at a tick in [0, T) and dies at a later one, past T if it lives across the step's end (a gradient that
the next step frees). Its accesses and stays are counted from the step in which it was born: tick T + 3 is tick 3 of
the next step. A life may be longer than T. Then two generations of the storage are there at once, and both count.
"""
