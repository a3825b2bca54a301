"""Every knob has a variable; bad values are errors that say what is accepted, unknown ones a warning."""

import re
import warnings
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

import pytest

from ebbtide.errors import EbbtideWarning, SettingError
from ebbtide.settings import KNOBS, Named, ProgressMode, Remake, Settings, SlowerTier, TierKind, UpdateOrder
from ebbtide.units import Budget

COMPRESSED = SlowerTier(TierKind.COMPRESSED, 2**20)


@pytest.mark.parametrize(
    ("tier", "why"),
    [
        ("", "names no kind"),
        (",", "names no kind"),
        ("flash:1GiB", "there is no kind 'flash'"),
        ("Compressed:1GiB", "there is no kind 'Compressed'"),
        ("c\u00f6mpressed:1GiB", "there is no kind"),
        ("compressed", "has no size"),
        ("compressed:", "has no size"),
        ("compressed:1GiB:2GiB", "has two sizes"),
        ("compressed:0", "0 B holds nothing"),
        ("compressed:-1GiB", "'-1GiB' is not a size"),
        ("compressed:25%", "'25%' is a share, not a size"),
        ("compressed:nanGiB", "'nanGiB' is not a size"),
        ("compressed:1e30GiB", "'1e30GiB' is not a size"),
        ("compressed:1MiB,compressed:2", "a bare number means bytes"),
        ("numa", "has no number of a node"),
        ("numa:1GiB", "has no number of a node"),
        ("numa::1GiB", "has no number of a node"),
        ("numa:-1:1GiB", "has no number of a node"),
        ("numa:\u0663:1GiB", "has no number of a node"),
        ("numa:1024:1GiB", "from 0 to 1023"),
        ("numa:99999999999999999999:1GiB", "from 0 to 1023"),
        ("numa:1", "has no size"),
        ("numa:1:1GiB:1GiB", "has two sizes"),
        ("numa:01:1GiB,compressed:1GiB,numa:1:1GiB", "numa1 is given twice"),
    ],
)
def test_a_tier_that_is_written_wrongly_is_refused_in_one_sentence(tier: str, why: str) -> None:
    with pytest.raises(SettingError) as refused:
        Settings().but(tiers=tier)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
    with nullcontext() if not tier else pytest.raises(SettingError, match="TIERS"):  # an empty variable is none
        Settings.from_environment({"EBBTIDE_TIERS": tier})


def test_blanks_around_the_parts_of_a_tier_do_not_count() -> None:
    assert Settings().but(tiers=" numa : 2 : 1 GiB ,compressed:1MiB").tiers == (
        SlowerTier(TierKind.NUMA, 2**30, 2),
        COMPRESSED,
    )


def test_every_field_has_exactly_one_variable() -> None:
    assert sorted(knob.field for knob in KNOBS.values()) == sorted(field.name for field in fields(Settings))


def test_every_field_can_be_named() -> None:
    assert {field.name for field in fields(Settings)} == set(Named.__annotations__) | {"fast"}


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("spill", Path("/nvme"), ("/nvme",)),
        ("spill", ["/nvme1", Path("/nvme2")], ("/nvme1", "/nvme2")),
        ("tiers", "compressed:1MiB, numa:2:1GiB", (COMPRESSED, SlowerTier(TierKind.NUMA, 2**30, 2))),
        ("report", Path("out.json"), "out.json"),
        ("fast_node", "64GiB", 64 * 2**30),
        ("fast_node", 2**30, 2**30),
        ("progress", ProgressMode.OFF, ProgressMode.OFF),
        ("progress", "off", ProgressMode.OFF),
        ("optimizer", "in-backward", UpdateOrder.IN_BACKWARD),
        ("optimizer", "deferred", UpdateOrder.DEFERRED),
        ("checksum", True, True),
        ("checksum", "pages", "pages"),
        ("arena_bytes", "16MiB", 16_777_216),
        ("arena_bytes", 16_777_216, 16_777_216),
        ("watchdog_s", 2, 2.0),
    ],
)
def test_what_is_named_goes_before_what_was(name: str, value: object, taken: object) -> None:
    named = Settings().but(**{name: value})  # type: ignore[arg-type]
    assert getattr(named, name) == taken
    assert named.but(**{name: None}) == named  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("io_threads", 0), ("progress", "loud"), ("optimizer", "early"), ("chaos_rate", 2), ("spil", "/")),
        *(("spill", 5), ("spill", [1]), ("report", 5), ("plan", True), ("fake", True)),
    ],
)
def test_what_is_named_wrongly_is_refused(name: str, value: object) -> None:
    with pytest.raises(SettingError, match=name):
        Settings().but(**{name: value})  # type: ignore[arg-type]


def test_a_budget_is_of_each_rank_or_of_the_node() -> None:
    node, rank = Settings().but(fast_node="4GiB"), Settings().but("1GiB")
    assert (node.fast, node.fast_node) == (None, 2**32)
    assert (rank.but(fast_node="4GiB"), node.but("1GiB")) == (node, rank)  # an argument goes before a variable
    with pytest.raises(SettingError, match="fast= and fast_node= are both given: name one of them"):
        Settings().but("1GiB", fast_node="4GiB")
    with pytest.raises(SettingError, match="EBBTIDE_FAST and EBBTIDE_FAST_NODE are both set"):
        Settings.from_environment({"EBBTIDE_FAST": "1GiB", "EBBTIDE_FAST_NODE": "4GiB"})


@pytest.mark.parametrize(("size", "says"), [("25%", 'each its percentage (fast="25%")'), ("4", "write 4GiB?")])
def test_the_budget_of_a_node_is_a_size(size: str, says: str) -> None:
    with pytest.raises(SettingError, match=re.escape(says)):
        Settings().but(fast_node=size)


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_environment({"PATH": "/bin", "EBBTIDE_FAST": " "}) == Settings()
    assert Settings().min_storage_bytes == 65_536


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("EBBTIDE_DISABLE", "1", "disable", True),
        ("EBBTIDE_DISABLE", "off", "disable", False),
        ("EBBTIDE_FAST", "25%", "fast", Budget(fraction=0.25)),
        ("EBBTIDE_FAST", "1MiB", "fast", Budget(nbytes=1_048_576)),
        ("EBBTIDE_SPILL", "/nvme", "spill", ("/nvme",)),
        ("EBBTIDE_SPILL", "/nvme1:/nvme2", "spill", ("/nvme1", "/nvme2")),
        ("EBBTIDE_TIERS", "compressed:1MiB", "tiers", (COMPRESSED,)),
        ("EBBTIDE_REPORT", "out.json", "report", "out.json"),
        ("EBBTIDE_MIN_STORAGE", "4096", "min_storage_bytes", 4096),
        ("EBBTIDE_PIECE", "4MiB", "piece_bytes", 4 * 2**20),
        ("EBBTIDE_IO_THREADS", "4", "io_threads", 4),
        ("EBBTIDE_WATCHDOG", "2.5", "watchdog_s", 2.5),
        ("EBBTIDE_CHAOS_RATE", "0.1", "chaos_rate", 0.1),
        ("EBBTIDE_CHAOS_SEED", "7", "chaos_seed", 7),
        ("EBBTIDE_WAIT_FOR_PLAN", "1", "wait_for_plan", True),
        ("EBBTIDE_CHECKSUM", "1", "checksum", True),
        ("EBBTIDE_CHECKSUM", "pages", "checksum", "pages"),
        ("EBBTIDE_REMAKE", "1", "remake", Remake()),
        ("EBBTIDE_REMAKE", "0", "remake", Remake(on=False)),
        ("EBBTIDE_REMAKE", "check", "remake", Remake(checks=True)),
        ("EBBTIDE_REMAKE", "-aten::silu", "remake", Remake(without=("aten::silu",))),
        (
            *("EBBTIDE_REMAKE", "check, -aten::silu,-aten::mul.Tensor", "remake"),
            Remake(checks=True, without=("aten::silu", "aten::mul.Tensor")),
        ),
        ("EBBTIDE_REMAKE", "+mine::rotate", "remake", Remake(added=("mine::rotate",))),
        (
            *("EBBTIDE_REMAKE", "0,+mine::rotate.out,-aten::mul", "remake"),
            Remake(on=False, without=("aten::mul",), added=("mine::rotate.out",)),
        ),
        ("EBBTIDE_ARENA", "16MiB", "arena_bytes", 16_777_216),
        ("EBBTIDE_PROGRESS", "plain", "progress", ProgressMode.PLAIN),
    ],
)
def test_a_variable_sets_its_field(variable: str, text: str, field: str, value: object) -> None:
    assert getattr(Settings.from_environment({variable: text}), field) == value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("EBBTIDE_DISABLE", "maybe"),
        ("EBBTIDE_FAST", "lots"),
        ("EBBTIDE_FAST", "8"),
        ("EBBTIDE_SPILL", "/nvme1::/nvme2"),
        ("EBBTIDE_TIERS", "numa:1:0"),
        ("EBBTIDE_TIERS", "compressed:1GiB,"),
        ("EBBTIDE_MIN_STORAGE", "4095"),
        ("EBBTIDE_PIECE", "0"),
        ("EBBTIDE_PIECE", "3MiB"),
        ("EBBTIDE_IO_THREADS", "0"),
        ("EBBTIDE_IO_THREADS", "2.5"),
        ("EBBTIDE_WATCHDOG", "0"),
        ("EBBTIDE_WATCHDOG", "nan"),
        ("EBBTIDE_CHAOS_RATE", "1.1"),
        ("EBBTIDE_CHAOS_SEED", "-1"),
        ("EBBTIDE_REMAKE", "checks"),
        ("EBBTIDE_REMAKE", "1,aten::silu"),
        ("EBBTIDE_REMAKE", "-silu"),
        ("EBBTIDE_ARENA", "1"),
        ("EBBTIDE_PROGRESS", "loud"),
    ],
)
def test_a_bad_value_is_an_error_that_says_what_is_accepted(variable: str, text: str) -> None:
    with pytest.raises(SettingError) as caught:
        Settings.from_environment({variable: text})
    assert variable in str(caught.value)
    assert text in str(caught.value)
    assert KNOBS[variable].accepts in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "meant"),
    [("optimizer", "in_backward", "in-backward"), ("optimizer", "defered", "deferred"), ("progress", "offf", "off")],
)
def test_a_word_that_is_nearly_one_of_those_accepted_names_that(name: str, text: str, meant: str) -> None:
    with pytest.raises(SettingError, match=rf"is not understood \(did you mean {meant}\?\); accepted: "):
        Settings().but(**{name: text})  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="is not understood; accepted"):
        Settings().but(**{name: "banana"})  # type: ignore[arg-type]


def test_an_unknown_variable_is_one_warning_that_names_the_nearest() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Settings.from_environment({"EBBTIDE_SPIL": "/nvme"})
    assert [warning.category for warning in caught] == [EbbtideWarning]
    assert "EBBTIDE_SPIL is unknown" in str(caught[0].message)
    assert "EBBTIDE_SPILL" in str(caught[0].message)


def test_an_unknown_variable_ends_nothing_where_warnings_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """As Kubernetes sets one where a service is called ebbtide."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Settings.from_environment({"EBBTIDE_PORT": "tcp://10.0.0.1:80"}) == Settings()
    assert capsys.readouterr().err.startswith("ebbtide: warning: EBBTIDE_PORT is unknown and ignored")
