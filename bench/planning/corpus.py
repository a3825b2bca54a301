"""The corpus: a dozen steps on which planners and policies are compared. Small files, which one command makes.

    python -m bench.planning.corpus FOLDER [--g10 FOLDER]
    ebbtide compare FOLDER/* --machine dram-cxl --fast 25%,50% --policy ebbtide,g10,lru --noise 25

- From shapes alone: ResNet-200, VGG-416, BERT-large and a decoder of Llama's 70B shape in half precision, with AdamW in
  fp32 on master weights. Times are assumed, those of the chips in ``bench.papers.steps``.
- Fake: Llama's 8B and 70B, as transformers has them, on tensors without memory. Times are modelled, an H200's.
- Recorded here: three small networks, in the times of this computer.
- G10's: three traces of that project in ``--g10``, which have their own machine. They are no part of this repository.

A step that is there already is not made again.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.papers.steps import ADAMW_FP32, BERT_LARGE, GPU, LLAMA_70B, XEON, Chip, resnet, transformer, vgg
from ebbtide.ir.files import save
from ebbtide.ir.trace import Trace

H200 = Chip(500e12, 4.0e12)
"""In half precision: assumed, half of the data sheet's FLOPs and five sixths of its bytes."""

SHAPES: Mapping[str, Callable[[], Trace]] = {
    "resnet-200": lambda: resnet((3, 24, 36, 3), 2560, XEON),
    "vgg-416": lambda: vgg((80, 80, 82, 82, 89), 320, XEON),
    "bert-large": lambda: transformer(BERT_LARGE, 64, 512, GPU, ADAMW_FP32),
    "llama-70b": lambda: transformer(LLAMA_70B, 8, 4096, H200, ADAMW_FP32),
}

FAKE = ("--fake", "--machine", "h200", "-m", "bench.planning.train_llama")
RECORDED: Mapping[str, tuple[str, ...]] = {
    "llama-8b-fake": (*FAKE, "--layers", "32", "--hidden", "4096", "--inner", "14336", "--heads", "32"),
    "llama-70b-fake": (*FAKE, "--layers", "80", "--hidden", "8192", "--inner", "28672", "--heads", "64"),
    **{net: ("-m", "bench.step.train", net, "--steps", "3") for net in ("gpt-small", "resnet-small", "resnet50-96px")},
}
"""What ``ebbtide trace`` is told."""


def record(name: str, command: tuple[str, ...], path: Path) -> None:
    with TemporaryDirectory() as folder:
        result = [] if "--fake" in command else ["--result", str(Path(folder) / f"{name}.json")]
        subprocess.run([sys.executable, "-m", "ebbtide", "trace", "-o", str(path), *command, *result], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--g10", type=Path, help="the folder of G10's traces (tiertrace/1)")
    asked = parser.parse_args()
    folder: Path = asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in SHAPES.items():
        if not (path := folder / f"{name}.trace").exists():
            save(make(), path)
    for name, command in RECORDED.items():
        if not (path := folder / f"{name}.trace").exists():
            record(name, command, path)
    for path in sorted(asked.g10.glob("*_b*.json")) if asked.g10 is not None else ():
        shutil.copyfile(path, folder / path.name)
    files = sorted(path for path in folder.iterdir() if path.suffix in (".trace", ".json"))
    print(f"{len(files)} steps in {folder}, {sum(path.stat().st_size for path in files) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
