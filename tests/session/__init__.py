"""Tests of ``ebbtide.session``."""
