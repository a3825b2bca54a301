"""Tests of ``ebbtide.recorders``, in this process."""
