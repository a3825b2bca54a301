"""Tests of ``ebbtide.ir``."""
