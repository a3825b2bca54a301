"""In the guest, after a training under Ebbtide: its tier lay on node 1 and nowhere else, and a plan was followed."""

import json
from pathlib import Path

report = json.loads(Path("/report.json").read_text())
samples = json.loads(Path("/samples.json").read_text())
(tier,) = (tier for tier in report["tiers"] if "numa" in tier["name"])
used = [sample for sample in samples if sample]
print(f"tier {tier}; on nodes at each look: {samples}")
assert tier["written_bytes"] > 0
assert tier["read_bytes"] > 0
assert used
assert all(sample.keys() == {"1"} for sample in used)
assert "planned" in {step["mode"] for step in report["steps"]}
print(f"training: same bits, {tier['read_bytes']} bytes came back from node 1, where they were in {len(used)} looks")
