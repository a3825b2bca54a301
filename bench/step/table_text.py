"""Tables as Markdown, for every script here that prints one."""


def markdown(lines: list[list[str]]) -> str:
    """The first line is the header; all but the first column are aligned to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(f"| {' | '.join(text)} |" for text in [texts[0], rule, *texts[1:]])
