"""From what was recorded of one step to a Trace, and other programs' records read as one."""
