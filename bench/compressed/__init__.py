"""What compressed memory makes of each class of storage."""
