"""Tests of ``ebbtide.budget``, without native code."""
