"""Hunts that take hours: random training, what grows, and sizes that errors name."""
