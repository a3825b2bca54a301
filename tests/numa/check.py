"""In the guest, after a training under Ebbtide: what its tier had lay on node 1, at each look; a plan was followed."""

import json
from pathlib import Path

report = json.loads(Path("/report.json").read_text())
samples = json.loads(Path("/samples.json").read_text())
(tier,) = (tier for tier in report["tiers"] if "numa" in tier["name"])
print(f"tier {tier}; in the tier, and on node 1, at each look: {samples}")
assert tier["written_bytes"] > 0
assert tier["read_bytes"] > 0
assert all(in_tier == on_node for in_tier, on_node in samples)
assert sum(in_tier > 0 for in_tier, _ in samples) >= len(samples) // 2
assert "planned" in {step["mode"] for step in report["steps"]}
print(f"training: same bits, {tier['read_bytes']} bytes came back from node 1, where they were in {len(samples)} looks")
