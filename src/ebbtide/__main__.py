"""``python -m ebbtide`` is the ``ebbtide`` command."""

from ebbtide.cli import main

main()
