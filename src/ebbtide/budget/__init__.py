"""The budget of a run: its bounds, what happens when it falls short, and the messages that say so."""
