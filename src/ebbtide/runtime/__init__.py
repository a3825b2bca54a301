"""Runs a training script within its memory: the session around it, its steps, and what it may use."""
