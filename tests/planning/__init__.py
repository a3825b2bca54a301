"""Tests of ``ebbtide.planning``, without native code."""
