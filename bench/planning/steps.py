"""Steps to plan that no machine here could record: written as traces.

    python -m bench.planning.steps FOLDER

``llama-70b.trace`` is a decoder of Llama's 70B shape, in half precision, forward and backward, with AdamW in fp32 on
master weights, for the machine ``h200``.
"""

import argparse
from pathlib import Path

from bench.papers.steps import ADAMW_FP32, LLAMA_70B, Chip, transformer
from ebbtide.ir.files import save

H200 = Chip(500e12, 4.0e12)
"""In half precision: assumed, half of the data sheet's FLOPs and five sixths of its bytes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    save(transformer(LLAMA_70B, 8, 4096, H200, ADAMW_FP32), folder / "llama-70b.trace")


if __name__ == "__main__":
    main()
