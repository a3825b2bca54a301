"""Planners of published systems, each in a file of its name, and the parts that several of them share."""
