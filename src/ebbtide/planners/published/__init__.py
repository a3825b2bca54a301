"""Planners of published systems, each in a file of its name, and what several of them share."""
