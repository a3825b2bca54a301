"""Tests of ``ebbtide.commands``: what is typed, and what it answers."""
