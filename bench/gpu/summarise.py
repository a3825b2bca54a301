"""A folder of the probe's results as one Markdown page, dated, with the machine it came from.

    python bench/gpu/summarise.py RESULTS... -o bench/results/DATE_DEVICE.md

Every line that a phase printed is a row; rows of one kind share a table. Nothing is averaged, nothing is left out but
the list of the allocator's virtual functions. Results of the fake driver are refused: their figures mean nothing.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The whole lines; one cut off by a time limit is dropped."""
    rows = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " ".join(cell(v) for v in value)
    if isinstance(value, dict):
        return ", ".join(f"{k}: {cell(v)}" for k, v in value.items())
    return str(value).replace("|", "/")


def table(rows: list[dict[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row if key not in ("what", "virtuals")))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(cell(row.get(c, "")) for c in columns) + " |" for row in rows]


def page(folders: list[Path], fake_too: bool) -> list[str]:
    lines: list[str] = []
    for folder in folders:
        run = json.loads((folder / "run.json").read_text())
        if run["fake"] and not fake_too:
            sys.exit(f"{folder}: a run over the fake driver; its figures mean nothing, so no page is made of them")
        files = [folder / f"{name}.jsonl" for name in ("attributes", "environment")]
        found = [row for file in files if file.exists() for row in lines_of(file)]
        keys = ("name", "driver", "torch", "cuda", "python")
        facts: dict[str, Any] = {key: row[key] for row in found for key in keys if key in row}
        lines += [f"# Probe of a GPU, {run['began']}" + (" (FAKE: figures mean nothing)" if run["fake"] else ""), ""]
        facts |= {"commit": run["commit"], "kernel": run["kernel"], "cpus": run["cpus"]}
        lines += [f"- {key}: {cell(value)}" for key, value in facts.items()] + [""]
        lines += ["| phase | answer | seconds |", "|---|---|---|"]
        for name, answer in run["phases"].items():
            whole = answer if isinstance(answer, dict) else {"answer": answer, "seconds": ""}
            lines.append(f"| {name} | {whole['answer']} | {whole['seconds']} |")
        for file in sorted(folder.glob("*.jsonl")):
            rows = lines_of(file)
            for what in dict.fromkeys(row["what"] for row in rows):
                lines += ["", f"## {file.stem}: {what}", "", *table([row for row in rows if row["what"] == what])]
        lines.append("")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--fake-too", action="store_true", help="for tests of this program")
    given = parser.parse_args()
    text = "\n".join(page(given.folders, given.fake_too))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(text)


if __name__ == "__main__":
    main()
