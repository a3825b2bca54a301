"""Ratio and speed of the compressed tier for each class of storage, on one thread, beside LZ4 and zstd alone:

    python -m bench.compressed.measure [--steps 20] [--out FILE]

The tier's own code is compiled and run over files of contents; the libraries are called block by block, where they are.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .contents import ROOT, contents

SOURCES = ("compressed_tier", "codec", "words", "free_runs", "system")
ROUNDS = 3
BLOCK = {"LZ4": 64 << 10, "zstd -1": 256 << 10}  # of the tier's size; of one that suits it

Pack = Callable[[int, int, int, int], int]  # from, bytes, to, room


def build(folder: Path) -> Path:
    program = folder / "speed"
    sources = [ROOT / "bench/compressed/speed.cpp", *(ROOT / f"native/core/{name}.cpp" for name in SOURCES)]
    flags = ("-O2", "-std=c++20", "-pthread", f"-I{ROOT / 'native'}")
    subprocess.run([os.environ.get("CXX", "g++"), *flags, *sources, "-ldl", "-o", program], check=True)
    return program


def lz4() -> tuple[Pack, Pack] | None:
    try:
        library = ctypes.CDLL("liblz4.so.1")
    except OSError:
        return None
    address, number = ctypes.c_void_p, ctypes.c_int
    library.LZ4_compress_fast.argtypes = [address, address, number, number, number]
    library.LZ4_decompress_safe.argtypes = [address, address, number, number]
    return (
        lambda source, size, to, room: int(library.LZ4_compress_fast(source, to, size, room, 1)),
        lambda source, size, to, room: int(library.LZ4_decompress_safe(source, to, size, room)),
    )


def zstd() -> tuple[Pack, Pack] | None:
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    address, size_t = ctypes.c_void_p, ctypes.c_size_t
    for function in (library.ZSTD_createCCtx, library.ZSTD_createDCtx):
        function.restype = address
    library.ZSTD_compressCCtx.restype = library.ZSTD_decompressDCtx.restype = size_t
    library.ZSTD_compressCCtx.argtypes = [address, address, size_t, address, size_t, ctypes.c_int]
    library.ZSTD_decompressDCtx.argtypes = [address, address, size_t, address, size_t]
    out, back = library.ZSTD_createCCtx(), library.ZSTD_createDCtx()  # as long as the process
    return (
        lambda source, size, to, room: int(library.ZSTD_compressCCtx(out, to, room, source, size, 1)),
        lambda source, size, to, room: int(library.ZSTD_decompressDCtx(back, to, room, source, size)),
    )


def alone(functions: tuple[Pack, Pack], data: Tensor, block: int) -> str:
    """Ratio, GB/s in and out, of blocks one after the other; none is refused."""
    pack, unpack = functions
    packed, back = torch.empty(2 * block, dtype=torch.uint8), torch.empty(block, dtype=torch.uint8)
    to, again, whole = packed.data_ptr(), back.data_ptr(), len(data) // block * block
    seconds: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        kept, out_s, back_s = 0, 0.0, 0.0
        for at in range(0, whole, block):
            begun = time.perf_counter()
            size = pack(data.data_ptr() + at, block, to, 2 * block)
            packed_at = time.perf_counter()
            if unpack(to, size, again, block) != block:
                raise RuntimeError("other bytes came back")
            out_s, back_s = out_s + packed_at - begun, back_s + time.perf_counter() - packed_at
            kept += size
        seconds.append((out_s, back_s))
    out_s, back_s = (statistics.median(column) for column in zip(*seconds, strict=True))
    return f"{kept / whole:.2f} | {whole / out_s * 1e-9:.2f} | {whole / back_s * 1e-9:.2f}"


def row(name: str, figures: dict[str, Any], others: list[str]) -> str:
    """The tier's figures are of the chunks that it took, or of how fast it refused them."""
    taken, refused = figures["taken"], figures["bytes"] - figures["taken"]
    if taken == 0:
        tier = f"refused | {refused / figures['refuse_s'] * 1e-9:.1f} | -"
    else:
        ratio = figures["kept"] / taken
        tier = f"{ratio:.3f} | {taken / figures['write_s'] * 1e-9:.1f} | {taken / figures['read_s'] * 1e-9:.1f}"
        if refused > 0:
            tier = f"{refused / figures['bytes']:.0%} refused, else {tier}"
    return " | ".join((f"| {name}", f"{figures['bytes'] / 2**20:.0f} MiB", tier, *others)) + " |"


def table(steps: int) -> str:
    libraries = {"LZ4": lz4(), "zstd -1": zstd()}
    found = {name: functions for name, functions in libraries.items() if functions is not None}
    heads = [f"{name} alone ({BLOCK[name] >> 10} KiB) | in | out" for name in found]
    columns = " | ".join(["| contents", "of", "tier: kept / bytes", "in, GB/s", "out", *heads]) + " |"
    lines = [columns, "|---" * (columns.count("|") - 1) + "|"]
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        release, taken = 0.0, 0
        for name, data in contents(steps):
            path = Path(folder) / "contents"
            data.numpy().tofile(path)
            run = subprocess.run([program, path], check=True, capture_output=True, text=True)
            figures = json.loads(run.stdout)
            lines.append(row(name, figures, [alone(functions, data, BLOCK[each]) for each, functions in found.items()]))
            print(lines[-1], flush=True)
            release, taken = release + figures["release_s"], taken + figures["kept"]
    lines.append(f"\nReleasing took {release / taken * 1e12:.0f} us a MB kept, in the mean.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="of training, before contents are taken")
    parser.add_argument("--out", type=Path, help="the table as Markdown")
    options = parser.parse_args()
    text = table(options.steps)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
