"""Tests of ``ebbtide.host``."""
