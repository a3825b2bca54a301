"""How fast ``ebbtide plan`` is, and how good its plans are."""
