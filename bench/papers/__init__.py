"""The findings of the sources, in the simulator."""
