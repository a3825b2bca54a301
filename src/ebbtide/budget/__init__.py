"""What a run may use: its bounds, what happens when it falls short, and the messages that say so."""
