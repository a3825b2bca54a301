"""Makes the demo's memory cgroups importable, and the helpers beside the tests; a browser; keeps threads from spinning.

PyTorch's threads wait for one another by spinning, which on a busy machine with few cores makes a step ten times
slower. Told to sleep instead, they run the same code. Set here, before anything imports torch, it holds for children.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# The same examples everywhere, however slow the machine is.
settings.register_profile("ebbtide", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ebbtide")

ROOT = Path(__file__).resolve().parent.parent
for folder in ("tests", "demo"):
    sys.path.insert(0, str(ROOT / folder))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium here to show the page in: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright: pip install playwright")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found)
        yield opened
        opened.close()
