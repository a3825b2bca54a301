"""Examines processors and memory nodes: threads beyond what may run spin, and memory on another node is far."""

import math
from pathlib import Path

from ebbtide.doctor.finding import Finding, Level
from ebbtide.doctor.view import TorchFacts, View
from ebbtide.host.kernel_files import text_of
from ebbtide.host.process import cgroup_files


def threads(view: View, torch: TorchFacts) -> Finding:
    means = "PyTorch's threads wait for one another by spinning: more of them than processors can be ten times slower"
    quota = _quota(view)
    usable = view.cpus if quota is None else min(view.cpus, max(math.floor(quota), 1))
    found = f"{view.cpus} processors" + (f", of which the container may use {quota:g}" if quota is not None else "")
    if torch.threads:
        found += f"; PyTorch uses {torch.threads} thread{'' if torch.threads == 1 else 's'}"
    if torch.threads > usable:
        return Finding("threads", Level.HINT, found, means, f"set OMP_NUM_THREADS={usable}")
    return Finding("threads", Level.OK, found, means)


def nodes(view: View) -> Finding:
    means = "memory on another node is slower to reach; a node without processors is added memory, such as CXL"
    found_nodes = sorted((view.root / "sys/devices/system/node").glob("node[0-9]*"))
    empty = [node.name for node in found_nodes if not _cpus_of(view, node)]
    if len(found_nodes) <= 1:
        found = "one node; `--tier numa:NODE:SIZE` needs memory on another to gain from it"
        return Finding("NUMA", Level.OK, found, means)
    found = f"{len(found_nodes)} nodes" + (f", of them {', '.join(empty)} without processors" if empty else "")
    with_cpus = [node.name.removeprefix("node") for node in found_nodes if node.name not in empty]
    if len(with_cpus) > 1:
        cure = f"keep a run on one node: numactl --cpunodebind={with_cpus[0]} --membind={with_cpus[0]} ebbtide run ..."
        return Finding("NUMA", Level.HINT, found, means, cure)
    tiers = ", ".join(f"numa:{node.removeprefix('node')}:SIZE" for node in empty)
    return Finding("NUMA", Level.OK, f"{found}; a run uses it with `--tier {tiers}`" if empty else found, means)


def _cpus_of(view: View, node: Path) -> str:
    return view.read(str((node / "cpulist").relative_to(view.root)))


def _quota(view: View) -> float | None:
    """Return the smallest number of processors that a container's group allows, or None."""
    quotas: list[float] = []
    for path in cgroup_files(view.proc, "cpu", ("cpu.cfs_quota_us",), ("cpu.max",)):
        try:
            words = text_of(path).split()
            period = words[1] if len(words) > 1 else text_of(path.parent / "cpu.cfs_period_us")
        except OSError:
            continue
        if words[0].isdigit():  # neither "max" nor -1
            quotas.append(int(words[0]) / int(period))
    return min(quotas, default=None)
