"""Tests of ``ebbtide.probe``."""
