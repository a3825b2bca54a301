"""Joins the page's scripts into one text, since JavaScript modules cannot import each other from a file on a disk.

Each module becomes a function that returns its exports, and stands after the modules that it imports. None of its names
is global. Two forms are read: ``import { a, b } from "./file.js";``, and ``export`` before a function, a class or a
const. Left out: defaults, renaming, circles.
"""

import posixpath
import re
from collections.abc import Callable, Sequence

_IMPORT = re.compile(r'^import \{([\w\s,]+)\} from "(\.[\w./]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def bundle(entries: Sequence[str], read: Callable[[str], str]) -> str:
    """Join the modules that ``entries`` name with all that they import. ``read`` returns the text at a path.

    Raises ValueError for an import that its module does not export, for a circle, and for a form that is not read.
    """
    exports: dict[str, list[str]] = {}
    functions: list[str] = []

    def place(path: str, importers: tuple[str, ...]) -> None:
        if path in importers:
            raise ValueError(f"modules import each other in a circle: {' '.join((*importers, path))}")
        if path in exports:
            return
        text = read(path)
        for names, source in _IMPORT.findall(text):
            target = _resolved(path, source)
            place(target, (*importers, path))
            for name in _split(names):
                if name not in exports[target]:
                    raise ValueError(f"{path} imports {name}, which {target} does not export")
        found = _EXPORT.findall(text)
        text = _IMPORT.sub(lambda match: f'const {{{match[1]}}} = modules["{_resolved(path, match[2])}"];', text)
        text = _EXPORT.sub("", text)
        if other := _OTHER.search(text):
            raise ValueError(f"{path}: {other[0]!r} is not a form that a page's modules may have")
        functions.append(f'modules["{path}"] = (() => {{\n{text}\nreturn {{ {", ".join(found)} }};\n}})();\n')
        exports[path] = found

    for entry in entries:
        place(entry, ())
    return '(() => {\n"use strict";\nconst modules = {};\n' + "".join(functions) + "})();\n"


def _resolved(path: str, source: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), source))


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
