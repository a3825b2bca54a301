"""Tests of ``ebbtide.doctor``."""
