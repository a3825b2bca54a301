"""Hears where steps begin and end, turns one's recording into a Trace, and reads other programs' records as one."""
