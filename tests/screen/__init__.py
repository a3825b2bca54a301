"""Tests of ``ebbtide.screen``, without native code."""
