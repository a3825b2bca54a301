"""Shows an analysis as a page of text: the peak, idle bytes, the gain from moving, and the best candidates."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ebbtide.analysis.curves import BandwidthPoint, MovesPoint
from ebbtide.analysis.intervals import QUANTILES, Distribution, module_patterns
from ebbtide.analysis.memory import Share, shares
from ebbtide.analysis.summary import Analysis, Swapping
from ebbtide.analysis.texts import Names, place, rate_text, time_text, words
from ebbtide.ir.trace import Trace
from ebbtide.units import format_bytes

BEST = 10
_ROWS = 6
_SHOWN = tuple(QUANTILES.index(quantile) for quantile in (0.5, 0.9, 0.99))


def page(analysis: Analysis, trace: Trace) -> RenderableType:
    names = Names(trace)
    root = names.root
    return Group(
        _headline(analysis, root),
        *_peak(analysis, root),
        *_idle(analysis, root),
        *_purchase(analysis),
        *_best(analysis, trace, names.short),
    )


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _table(titles: Sequence[str], n_texts: int = 1) -> Table:
    """Return a table whose first columns are texts, which may fold; the others are figures."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, title in enumerate(titles):
        if number < n_texts:
            table.add_column(title, overflow="fold")
        else:
            table.add_column(title, justify="right", no_wrap=True)
    return table


def _headline(analysis: Analysis, root: str) -> Text:
    modules = f"; modules are those of {root.removesuffix('.')}" if root else ""
    return Text(
        f"{analysis.name or 'a step'}: {analysis.ticks:,} operations, {time_text(analysis.step_ns)} a step "
        f"({analysis.origin}), {analysis.storages:,} storages, {analysis.accesses:,} accesses{modules}"
    )


def _peak(analysis: Analysis, root: str) -> Iterable[RenderableType]:
    peak = analysis.peak
    at = place(peak.operator, peak.module.removeprefix(root))
    yield _heading(
        f"Peak: {format_bytes(peak.nbytes)} of live tensors, {time_text(peak.time_ns)} into the step "
        f"(tick {peak.tick:,}, {at})"
    )
    kinds = tuple(replace(share, label=words(share.label)) for share in peak.by_kind())
    patterns = module_patterns(row.module for row in peak.residents)
    modules = shares(peak.residents, lambda row: patterns[row.module].removeprefix(root))
    born = tuple(share for share in peak.by_operator() if share.label)
    made = tuple(share for share in peak.by_line() if share.label)
    for title, found in (("kind", kinds), ("module", modules), ("allocated by", born), ("made at line", made)):
        if found or title != "made at line":
            yield _shares(title, found, peak.nbytes)


def _shares(title: str, found: Sequence[Share], total: int) -> Table:
    table = _table((title, "bytes", "share", "storages"))
    rows, rest = found[:_ROWS], found[_ROWS:]
    if rest:
        label = f"{len(rest)} others"
        rows = (*rows, Share(label, sum(share.nbytes for share in rest), sum(share.count for share in rest)))
    for share in rows:
        figures = (format_bytes(share.nbytes), _percent(share.nbytes, total), f"{share.count:,}")
        table.add_row(Text(share.label or "(none)"), *figures)
    return table


def _idle(analysis: Analysis, root: str) -> Iterable[RenderableType]:
    memory = analysis.memory
    live, idle = memory.mean(memory.live), memory.mean(memory.idle_bytes)
    yield _heading(
        f"Idle: {_percent(idle, live)} of the bytes, on average {format_bytes(idle)} of {format_bytes(live)} at a time"
    )
    reasons = [(words(reason), memory.mean(level)) for reason, level in memory.idle.items()]
    yield Text(", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in reasons if nbytes))
    table = _table(("between uses", "intervals", "median", "90 %", "99 %", "longest", "bytes x time"))
    found = analysis.waiting.distributions
    kinds = tuple(replace(row, label=words(row.label)) for row in found.by_kind)
    modules = tuple(replace(row, label=row.label.removeprefix(root) or "(none)") for row in found.by_module[:_ROWS])
    for rows in ((found.overall,), kinds, modules):
        for row in rows:
            table.add_row(Text(row.label), *_distribution(row, found.overall.byte_seconds))
        table.add_section()
    yield table


def _distribution(row: Distribution, total: float) -> list[str]:
    quantiles = (time_text(row.quantiles_ns[number]) for number in _SHOWN)
    return [f"{row.count:,}", *quantiles, time_text(row.longest_ns), _percent(row.byte_seconds, total)]


def _purchase(analysis: Analysis) -> Iterable[RenderableType]:
    swapping, peak_bytes = analysis.swapping, analysis.peak.nbytes
    if swapping is None:
        yield _heading("What moving would buy, by the bandwidth each way (--machine NAME|FILE: on that machine)")
        yield _bandwidths(analysis.waiting.bandwidths, peak_bytes)
    else:
        yield _heading(f"What moving would buy on {swapping.machine} ({swapping.origin})")
        yield Text(_verdict(swapping, peak_bytes))
        yield _curve(swapping.curve, peak_bytes)


def _verdict(swapping: Swapping, peak_bytes: int) -> str:
    found, route, left = swapping.candidates, swapping.route, swapping.curve[-1].peak_bytes
    alone, queued, outliers = (int(chosen.sum()) for chosen in (found.alone, found.queued, found.outlier))
    return (
        f"Out {rate_text(route.out.bytes_per_s)}, back {rate_text(route.back.bytes_per_s)}"
        f"{', taking turns' if route.shared else ''}. Of {len(found):,} intervals {alone:,} are long enough alone "
        f"({format_bytes(swapping.alone_bytes)} away on average), {queued:,} in the links' queue "
        f"({format_bytes(swapping.queued_bytes)}). The {outliers:,} outliers hold "
        f"{_percent(swapping.outlier_share, 1)} of all bytes x time. Without slowing compute the peak "
        f"{f'falls to {_percent(left, peak_bytes)}' if left < peak_bytes else 'does not fall'}."
    )


def _curve(curve: Sequence[MovesPoint], peak_bytes: int) -> Table:
    table = _table(("best moves", "copied each way", "peak", "of now"), n_texts=0)
    nearest = [min(curve, key=lambda point: abs(point.moves - moves)) for moves in (0, 1, 10, 100, 1000)]
    for point in dict.fromkeys((*nearest, curve[-1])):
        copied, peak = format_bytes(point.moved_bytes), format_bytes(point.peak_bytes)
        table.add_row(f"{point.moves:,}", copied, peak, _percent(point.peak_bytes, peak_bytes))
    return table


def _bandwidths(points: Sequence[BandwidthPoint], peak_bytes: int) -> Table:
    table = _table(("each way", "fit alone", "away", "fit in queue", "away", "peak", "of now"), n_texts=0)
    for point in points:
        table.add_row(
            rate_text(point.bytes_per_s),
            f"{point.alone:,}",
            format_bytes(point.alone_bytes),
            f"{point.queued:,}",
            format_bytes(point.queued_bytes),
            format_bytes(point.peak_bytes),
            _percent(point.peak_bytes, peak_bytes),
        )
    return table


def _best(analysis: Analysis, trace: Trace, modules: Sequence[str]) -> Iterable[RenderableType]:
    if analysis.swapping is None:
        return
    found = analysis.swapping.candidates
    yield _heading("Best candidates: of each storage the idle interval with the most bytes x time")
    table = _table(("module", "kind", "storage", "size", "idle", "in ticks", "out + back", "fits"), n_texts=2)
    fitting = np.flatnonzero(found.alone)
    _, first = np.unique(found.storage[fitting], return_index=True)
    for row in fitting[np.sort(first)[:BEST]].tolist():
        number = int(found.storage[row])
        table.add_row(
            Text(modules[number] or "(none)"),
            words(trace.storage(number).kind),
            str(number),
            format_bytes(int(found.nbytes[row])),
            time_text(int(found.idle_ns[row])),
            f"{found.after[row] + 1}-{found.until[row] - 1}",
            time_text(int(found.out_ns[row] + found.back_ns[row])),
            "queued" if found.queued[row] else "alone",
        )
    yield table if len(fitting) else Text("none: no interval is long enough for its storage")
