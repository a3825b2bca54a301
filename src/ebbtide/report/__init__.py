"""What happened, as a file and as text a person reads. Never imports torch."""
