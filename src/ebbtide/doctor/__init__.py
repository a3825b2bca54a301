"""Examines a machine: what keeps training from running within a budget here, or slows it needlessly."""
