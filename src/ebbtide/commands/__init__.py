"""The commands, one file each; ``cli`` gathers them. A file imports what it needs when its command runs."""
