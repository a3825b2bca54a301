"""Callbacks for trainers that own the training loop, a module for each; none is imported but by whoever names it."""
