"""Hears where steps begin and end, and turns the recording of one into a Trace; reads other programs' records as one."""
