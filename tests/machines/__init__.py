"""Tests of ``ebbtide.machines``."""
