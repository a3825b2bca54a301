"""Runs the tests' children on a fake GPU where FAKE_CUDA_LIBRARY names its driver (``make fake-gpu-test``)."""

import os

LIBRARY = os.environ.get("FAKE_CUDA_LIBRARY", "")
"""Of bench/gpu/fake_cuda.cpp; "": tests run on the CPU's memory."""


def variables() -> dict[str, str]:
    """Of a session in a child: storages leave for the spill file, as on the CPU, unless a test asks for host memory."""
    return {"EBBTIDE_FAKE_CUDA": LIBRARY, "EBBTIDE_HOST": "0"} if LIBRARY else {}
