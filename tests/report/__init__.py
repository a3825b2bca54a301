"""Tests of ``ebbtide.report``, some in a browser."""
