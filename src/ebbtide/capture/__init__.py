"""Turns the recording of one step into a Trace, and reads other programs' records as one."""
