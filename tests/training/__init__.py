"""Tests that start processes which train, or run in one (``in_child``)."""
