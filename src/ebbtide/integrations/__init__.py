"""Callbacks for trainers that own the training loop, a module for each. Only a program that names one imports it."""
