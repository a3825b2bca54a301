"""What is said beforehand of a tier that this machine has, and that would gain nothing."""

from pathlib import Path

from ebbtide.host.tiers import same_memory


def test_the_only_node_of_a_machine_is_remarked_on(tmp_path: Path) -> None:
    (tmp_path / "node0").mkdir()
    (tmp_path / "online").write_text("0\n")
    assert "node 0 is the only one of this machine" in same_memory(0, tmp_path)
    assert same_memory(-1, tmp_path) == ""  # compressed memory is on none
    (tmp_path / "node1").mkdir()
    assert same_memory(0, tmp_path) == same_memory(1, tmp_path) == ""
    assert same_memory(0, tmp_path / "nothing") == ""
