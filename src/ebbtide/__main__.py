"""``python -m ebbtide`` is the ``ebbtide`` command."""

import sys

if not sys.flags.safe_path:
    sys.path[0] = sys.path[1]  # in place of the current directory: modules there may have the names of Python's own

from ebbtide.cli import main

main()
