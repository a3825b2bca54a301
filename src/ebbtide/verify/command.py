"""Carries out ``ebbtide verify``: two plain runs, one within the budget between them, and the verdict.

The bounded run comes second, so that a budget that cannot work is refused soon. If some kind of bytes had no reason to
move in it, the script runs once more in the same budget, and everything leaves memory after each use; on a device,
whatever chance picks.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from ebbtide.errors import EbbtideError, SettingError
from ebbtide.host.accelerator import device_named, require_device_events
from ebbtide.host.spill import choose_spill_directories
from ebbtide.host.tiers import check_tier
from ebbtide.planning.policies import is_planned
from ebbtide.session.session import refuse_unfit_for_a_device
from ebbtide.settings import PREFIX, Settings
from ebbtide.units import format_time
from ebbtide.verify.compare import first_difference
from ebbtide.verify.folders import make_folder
from ebbtide.verify.runs import Run, bounded_environment, plain_environment, run_once
from ebbtide.verify.verdict import Verdict, judge_bounded, judge_plain

DEFAULT_FAST = "25%"
RUNS = 3
_EVICTING = {"POLICY": "evict-all"}
_AT_RANDOM = {"POLICY": "demand", "CHAOS_RATE": "0.2"}
_OF_A_BUDGET = ("FAST", "FAST_NODE", "ARENA")
_OF_PLANS = ("PLAN", "MACHINE", "SAVE_TRACE", "SAVE_PLAN", "SAVE_TIMELINE")
"""Variables of runs that make plans. A policy without plans refuses them."""


class NothingToVerifyError(EbbtideError):
    """The script made no optimizer step in its own process."""

    def __str__(self) -> str:
        return (
            "no optimizer step was seen, so there is nothing to compare: the script has to train, and in the process "
            "that is started (not in others that it starts)."
        )


def verify_script(
    command: Sequence[str],
    options: Mapping[str, str],
    keep: Path | None,
    begin: Callable[[str], None],
    say: Callable[[str], None],
) -> Verdict:
    """Run the script plainly twice and within the budget, and compare.

    ``options`` are EBBTIDE_... variables without the prefix. The runs' directories stay in ``keep``. ``begin`` is told
    of each of ``RUNS`` runs, and of one more if some kind did not move, or if the bits differ. ``say`` is told the
    results.

    Raises SettingError or SpillError for what cannot be used, and RunError when the script fails in one of the runs.
    """
    set_before = [text for name in _OF_A_BUDGET if (text := os.environ.get(PREFIX + name, "").strip())]
    options = ({} if set_before else {"FAST": DEFAULT_FAST}) | dict(options)
    fast = options.get("FAST") or set_before[0]
    settings = Settings.from_environment({**os.environ, **{PREFIX + name: text for name, text in options.items()}})
    device = _check(settings)
    with _directory(keep) as runs:

        def run(name: str, environment: dict[str, str], state_after: int | None) -> Run:
            begin(f"{name} run")
            folder = make_folder(command, Path.cwd(), runs, name)
            done = run_once(name, folder, runs / name, environment, state_after)
            say(f"{name.replace('-', ' ')} run: {done.steps} steps, {format_time(done.ending.seconds)}")
            return done

        def run_within(name: str, state_after: int | None, more: Mapping[str, str] = MappingProxyType({})) -> Run:
            unused = {PREFIX + variable for variable in _OF_PLANS} if more else set()
            users = {variable: text for variable, text in os.environ.items() if variable not in unused}
            chosen = dict(options) | dict(more)
            return run(name, bounded_environment(chosen, runs / name / "report.json", users), state_after)

        plain = run("plain", plain_environment(), None)
        if not plain.steps:
            raise NothingToVerifyError
        bounded, more = run_within("bounded", plain.steps), dict[str, str]()
        again = run("second-plain", plain_environment(), None)
        verdict = judge_plain(tuple(command), fast, plain, again, device)
        if verdict.unsteady is not None:
            return verdict
        verdict = judge_bounded(verdict, plain, bounded, settings.min_storage_bytes)
        if verdict.same_bits and verdict.budget_held and not verdict.every_kind_moved:
            how = "with everything evicted after each use" if device is None else "and chance evicts storages"
            say(f"not every kind of bytes had to move; once more, {how}")
            more = _EVICTING if device is None else _AT_RANDOM
            evicting = run_within("evicting", plain.steps, more)
            verdict = verdict.with_evicting(judge_bounded(verdict, plain, evicting, settings.min_storage_bytes))
        if verdict.difference is None:
            return verdict
        say("the bits differ; once more, with the state recorded after every step, to find where that begins")
        return verdict.with_trace(first_difference(plain.record, run_within("traced", None, more).record))


def _check(settings: Settings) -> str | None:
    """Refuse now, before the plain runs, what the bounded run would refuse. Return the device that is bounded."""
    is_planned(settings.policy)
    if settings.device is not None:
        refuse_unfit_for_a_device(settings)
        require_device_events(device := device_named(settings.device))
        return str(device)
    choose_spill_directories(settings.spill)
    for tier in settings.tiers:
        check_tier(tier.name, tier.kind, tier.capacity_bytes, tier.node)
    return None


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """Yield the directory to keep, which must be new or empty, or else a temporary one."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="ebbtide-verify-", ignore_cleanup_errors=True) as name:
            yield Path(name).resolve()
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        unused = not any(keep.iterdir())
    except OSError as error:
        raise SettingError(f"the runs cannot be kept in {keep}: {error.strerror}") from error
    if not unused:
        raise SettingError(f"the runs cannot be kept in {keep}: it is not empty")
    yield keep.resolve()
