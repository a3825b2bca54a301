"""Tests of ``ebbtide.analysis``."""
