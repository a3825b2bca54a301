"""Tests of ``ebbtide.planners``."""
