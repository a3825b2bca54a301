"""Makes the demo's memory cgroups importable, and the helpers beside the tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for folder in ("tests", "demo"):
    sys.path.insert(0, str(ROOT / folder))
