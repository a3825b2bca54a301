"""Shows what happened, as a file and as text for people. It never imports torch."""
