"""`make numa-test`: the native tests of NUMA tiers, and a small training, in a machine that has a second node.

That node has no CPU and lies at distance 28. The machine is QEMU's, without acceleration; its kernel and userland come
from Debian's packages, which `apt-get download` fetches without installing them; the tests are the program that was
built here, with the libraries that it uses here. What it says on its serial console is printed, and kept in
build/numa/console.log. Exit status 0: tests ran, none failed and none was skipped, and the training had the same bits
under Ebbtide, with a tier on that node, as without it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.numa import cpio

HERE = Path(__file__).parent
KERNEL = "linux-image-cloud-amd64"
# In this order; what is not in the package is part of the kernel.
MODULES = (
    "virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk",
    "crc16", "crc32c_generic", "libcrc32c", "mbcache", "jbd2", "ext4",
)  # fmt: skip
NODES = (
    "-smp", "2", "-m", "3G",
    "-object", "memory-backend-ram,id=near,size=2G", "-object", "memory-backend-ram,id=far,size=1G",
    "-numa", "node,nodeid=0,cpus=0-1,memdev=near", "-numa", "node,nodeid=1,memdev=far",
    "-numa", "dist,src=0,dst=1,val=28",
)  # fmt: skip


def missing() -> list[str]:
    """What has to be installed, in words."""
    needs = {
        "qemu-system-x86_64": "qemu-system-x86",
        "mke2fs": "e2fsprogs",
        "dpkg-deb": "dpkg",
        "apt-get": "apt, of Debian or a system made from it, whose packages the guest is made of",
        "ldd": "libc-bin",
    }
    return [f"{program} (package {package})" for program, package in needs.items() if not _which(program)]


def _which(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def unpacked(package: str, folder: Path) -> Path:
    """The package's files, fetched if they are not here yet."""
    files = folder / package
    if not files.exists():
        downloads = folder / f"{package}.download"
        shutil.rmtree(downloads, ignore_errors=True)
        downloads.mkdir(parents=True)
        fetch = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", package]
        subprocess.run(fetch, cwd=downloads, check=True, stdout=subprocess.DEVNULL)
        (deb,) = downloads.glob("*.deb")
        partly = folder / f"{package}.partly"
        shutil.rmtree(partly, ignore_errors=True)
        subprocess.run(["dpkg-deb", "--extract", deb, partly], check=True)
        partly.rename(files)
    return files


def kernel_package() -> str:
    """The package that KERNEL, which is empty, stands for at the moment."""
    said = subprocess.run(["apt-cache", "depends", KERNEL], capture_output=True, text=True).stdout
    found = re.search(r"Depends: (linux-image-\S+)", said)
    if found is None:
        sys.exit(f"numa-test: apt knows no package {KERNEL}; as root: apt-get update")
    return found[1]


def libraries(program: Path) -> list[Path]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]


def initramfs(out: Path, program: Path, kernel: Path, busybox: Path) -> None:
    entries: dict[str, bytes | None] = dict.fromkeys(("bin", "dev", "disk", "modules", "proc", "sys", "tmp"))

    def put(path: str, source: Path) -> None:
        for folder in reversed(Path(path).parents[:-1]):
            entries.setdefault(str(folder), None)
        entries[path] = source.read_bytes()

    put("init", HERE / "init.sh")
    put("tests.bin", program)
    for library in libraries(program):
        put(str(library).lstrip("/"), library)
    for name in ("basename", "cat", "chroot", "grep", "insmod", "mount", "poweroff", "sed", "sh", "umount"):
        put(f"bin/{name}", busybox / "bin/busybox")
    for number, name in enumerate(MODULES):
        for module in kernel.glob(f"lib/modules/*/kernel/**/{name}.ko"):
            put(f"modules/{number:02}-{name}.ko", module)
    with out.open("wb") as file:
        cpio.write(file, entries)


def make_disk(disk: Path, training: bool) -> None:
    """A filesystem with space to spill, and with what trains."""
    disk.unlink(missing_ok=True)
    tree = disk.with_suffix(".tree")
    if training:
        from tests.numa import image

        image.stage(tree)
    files = ["-d", tree] if training else []
    lazily = "lazy_itable_init=0,lazy_journal_init=0"
    command = [_which("mke2fs") or "mke2fs", "-q", "-E", lazily, "-t", "ext4", *files, disk, "4G"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree, ignore_errors=True)


def boot(kernel: Path, initramfs: Path, disk: Path, words: list[str], seconds: float, log: Path) -> str:
    """What the machine said until it was switched off."""
    command = [
        "timeout", str(seconds), "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", *NODES,
        "-kernel", str(kernel), "-initrd", str(initramfs),
        "-append", " ".join(["console=ttyS0 quiet panic=-1", *words]),
        "-drive", f"file={disk},if=virtio,format=raw,cache=unsafe",
        "-nic", "none", "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot",
    ]  # fmt: skip
    said = ""
    # Errors: what a firmware writes to a console is not always text.
    machine = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
    )
    with log.open("w") as file, machine:
        assert machine.stdout is not None
        for line in machine.stdout:
            print(line, end="", flush=True)
            file.write(line)
            said += line
    return said


def verdict(said: str, training: bool) -> str | None:
    """Why it failed, or None."""
    passed = re.search(r"^(\d+) passed, 0 failed", said, re.MULTILINE)
    if "numa-test: exit 0" not in said:
        return "something failed, or the machine ended before all was done"
    if passed is None or int(passed[1]) == 0:
        return "no test ran"
    if "  skipped: " in said:
        return "a test was skipped"
    if training and "training: same bits" not in said:
        return "nothing was trained"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description="The native tests of NUMA tiers, in a machine with a second node.")
    parser.add_argument("program", type=Path, help="the native tests, built")
    parser.add_argument("--build", type=Path, default=Path("build/numa"), help="folder for what is made and fetched")
    parser.add_argument("--tests", default="numa", help="part of the names of the tests that run")
    parser.add_argument("--operations", type=int, default=3000, help="of each stress test")
    parser.add_argument("--train", action="store_true", help="train too, with this interpreter and its packages")
    parser.add_argument("--seconds", type=float, default=2400, help="until the machine is ended")
    args = parser.parse_args()
    if lacks := missing():
        sys.exit(f"numa-test: not here: {'; '.join(lacks)}. As root: apt-get install qemu-system-x86")
    args.build.mkdir(parents=True, exist_ok=True)
    kernel = unpacked(kernel_package(), args.build)
    (image,) = kernel.glob("boot/vmlinuz-*")
    first, disk = args.build / "initramfs", args.build / "disk"
    initramfs(first, args.program, kernel, unpacked("busybox-static", args.build))
    make_disk(disk, args.train)
    words = [f"EBBTIDE_TESTS={args.tests}", f"EBBTIDE_STRESS_OPERATIONS={args.operations}"]
    why = verdict(boot(image, first, disk, words, args.seconds, args.build / "console.log"), args.train)
    if why is not None:
        sys.exit(f"numa-test: {why}")


if __name__ == "__main__":
    main()
