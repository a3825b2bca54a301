"""Tests of ``bench/``."""
