"""Tests of ``ebbtide.capture``."""
