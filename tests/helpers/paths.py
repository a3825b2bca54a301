"""Where things lie that tests read or run."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
SCRIPTS = ROOT / "tests" / "scripts"
G10 = ROOT.parent / "shared" / "g10"
"""Traces and the judge of the format tiertrace/1, where they are at hand."""
