"""Makes the demo's memory cgroups importable, and the helpers beside the tests; keeps threads from spinning.

PyTorch's threads wait for one another by spinning, which on a busy machine with few cores makes a step ten times
slower. Told to sleep instead, they run the same code. Set here, before anything imports torch, it holds for children.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

ROOT = Path(__file__).resolve().parent.parent
for folder in ("tests", "demo"):
    sys.path.insert(0, str(ROOT / folder))
