"""Tests of the repository itself: its pages, its layers and its rooms."""
