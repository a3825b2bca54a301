"""The commands, one file each, which ``cli`` gathers. A file imports what it needs only when its command runs."""
