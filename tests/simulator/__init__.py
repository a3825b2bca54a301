"""Tests of ``ebbtide.simulate``."""
