"""What ``ebbtide probe`` does: measure, show, and write the machine down."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ebbtide.errors import SettingError
from ebbtide.probe.figures import Findings
from ebbtide.probe.measure import THOROUGH, measure
from ebbtide.probe.model import machine_of
from ebbtide.probe.table import render_table
from ebbtide.runtime.spill import choose_spill_directories
from ebbtide.settings import Settings
from ebbtide.whole_file import write_whole


def probe_and_write(
    spill: Sequence[str], seconds: float, output: Path | None, show: Callable[[str], None] = print
) -> None:
    """Raises SpillError when a directory cannot serve, SettingError when the file cannot be written."""
    if output is not None and (output.is_dir() or not os.access(output.parent, os.W_OK | os.X_OK)):
        raise SettingError(f"the machine cannot be written to {output}: name a file in a writable directory")
    settings = Settings.from_environment()
    directories = choose_spill_directories(spill or settings.spill)
    print(f"ebbtide: measuring {', '.join(map(str, directories))} for about {seconds:g} s", file=sys.stderr)
    findings = measure(directories, replace(THOROUGH, seconds=seconds), settings.io_threads)
    show(render_table(findings))
    if output is not None:
        write_whole(output, machine_file(findings).encode())
        show(f"\nwrote {output}: the figures marked *, the latencies and the mean slow-downs")


def machine_file(findings: Findings) -> str:
    """The machine, below the table as comments: the file says how its figures were got."""
    comments = "".join(f"# {line}".rstrip() + "\n" for line in render_table(findings).splitlines())
    return f"# Measured by ebbtide probe in {findings.took_s:.0f} s.\n{comments}\n{machine_of(findings).to_toml()}"
