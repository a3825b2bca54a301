"""Tests that start processes which train; ``cases_*`` is what those processes run."""
