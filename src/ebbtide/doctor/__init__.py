"""Examines a machine: what keeps training from running within a budget here, or makes it slower than it need be."""
