"""Examples below the options in a command's help."""


def examples(*lines: str) -> str:
    """Return an ``epilog`` of command lines, each left as it is."""
    return "\n".join(("Examples:", "", "\b", *(f"  {line}" for line in lines)))
