"""The probe's PyTorch phases, one per process: ``python probe.py PHASE [--device cpu] [--small]`` prints JSON lines.

README.md beside this file says which question each phase answers. ``--device cpu --small`` carries out the same code
without a GPU: it shows that the code runs, and its figures mean nothing. Left out: several GPUs, compiled whole steps.
"""

import argparse

from bits import bits, bits_child
from common import Device
from seen import compiled, environment, hook, reach
from training import baselines, dispatch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    phases = {"bits": bits, "dispatch": dispatch, "baselines": baselines, "compiled": compiled}
    phases |= {"hook": hook, "reach": reach}
    parser.add_argument("phase", choices=["environment", "bits_child", *phases])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--allocator", default="native")
    parser.add_argument("--backward", default="threads")
    parser.add_argument("--deterministic", action="store_true")
    given = parser.parse_args()
    device = Device(given.device)
    if given.phase == "environment":
        environment(device)
    elif given.phase == "bits_child":
        bits_child(device, given.allocator, given.deterministic, given.backward, given.small)
    else:
        phases[given.phase](device, given.small)


if __name__ == "__main__":
    main()
