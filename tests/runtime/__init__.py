"""Tests of ``ebbtide.runtime``, without native code."""
