"""Which charts the report has, made from a `Status` with its detail. Pure: data in, SVG out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from spillway.readmodel.tally import Point, at_most
from spillway.report.model import Detail, SessionStatus, SpillChoice, Status
from spillway.report.svg import Plot, Safe, ticks
from spillway.report.words import bytes_text, span_text, times_text

MOST_DRAWN = 256
MOST_SLOTS = 8
MOST_CHOICES = 32
LEAST = 0.01
"""Productivity that counts as none: where the logarithmic axis begins."""


@dataclass(frozen=True)
class Chart:
    """A figure of the page."""

    title: str
    says: str
    """What there is to see, in a sentence."""
    legend: tuple[tuple[str, str], ...]
    """CSS class and words."""
    svg: Safe


def charts(status: Status) -> list[Chart]:
    """Every chart that there is something to draw for, in the page's order."""
    detail = status.detail
    if detail is None:
        raise ValueError("the report needs a status with its detail")
    session = status.session_of(detail.session)
    if session is None or not detail.points:
        return []
    points = at_most(detail.points, MOST_DRAWN)
    own = [p for p in points if p.session == detail.session]
    axis = _Time.of(points, detail)
    found = [_results(points, detail, session, axis), _rates(own, axis)]
    found += [_memory(own, slot, status.threshold, session, axis) for slot in _fullest(own)]
    if detail.choices:
        found.append(_productivity(detail.choices))
    found.append(_epochs(own))
    return found


@dataclass(frozen=True)
class _Time:
    """The horizontal axis of what happens in time: seconds since the session began."""

    zero_ms: int
    end_s: float
    unit_s: float
    unit: str

    @classmethod
    def of(cls, points: Sequence[Point], detail: Detail) -> _Time:
        zero = points[0].started_ms
        last = max([p.ended_ms for p in points] + [c.written_ms for c in detail.cleaning])
        return cls.spanning(zero, last)

    @classmethod
    def spanning(cls, zero_ms: int, last_ms: int) -> _Time:
        end = max((last_ms - zero_ms) / 1000, 1.0)
        unit_s, unit = (1, "s") if end < 180 else (60, "min") if end < 10_800 else (3600, "h")
        return cls(zero_ms, end, unit_s, unit)

    def s(self, ms: float) -> float:
        return (ms - self.zero_ms) / 1000

    def draw(self, plot: Plot) -> None:
        at = [t * self.unit_s for t in ticks(0, self.end_s / self.unit_s, 7)]
        title = f"time since the session began ({self.unit})"
        plot.axis_x(at, lambda t: f"{t / self.unit_s:g}", title)


def _results(points: list[Point], detail: Detail, session: SessionStatus, axis: _Time) -> Chart:
    line: list[tuple[float, float]] = [(axis.s(points[0].started_ms), 0.0)]
    total = 0
    for point in points:
        total += point.results.get(detail.session, 0)
        line.append((axis.s(point.ended_ms), float(total)))
    steps = [(float(c.written_ms), c.rows) for c in detail.cleaning]
    by_cleanup = session.results_cleanup or 0
    if by_cleanup and sum(rows for _, rows in steps) != by_cleanup:
        steps = []  # compaction has replaced files: only the sum is known
    cleaned_from = _cleaned_from(steps, session)
    end_s = axis.end_s
    if cleaned_from is not None:
        end_s = max(end_s, axis.s(cleaned_from[1]))
    axis = _Time.spanning(axis.zero_ms, int(axis.zero_ms + end_s * 1000))
    verdict = session.verdict
    expected = verdict.expected if verdict is not None else None
    highest = max(total + by_cleanup, expected or 0, 1)
    plot = Plot((0, axis.end_s), (0, highest * 1.08), label=f"Results over time: {highest:,}")
    plot.axis_y(ticks(0, highest * 1.08), _short, "results")
    axis.draw(plot)
    top = [*line, (axis.end_s, float(total))]
    plot.area(top, None, "run")
    plot.line(top, "run")
    if cleaned_from is not None and by_cleanup:
        upper = _stacked(total, by_cleanup, steps, cleaned_from, axis)
        plot.area(upper, [(upper[0][0], float(total)), (upper[-1][0], float(total))], "clean")
        plot.line(upper, "clean")
        plot.hint(upper[0][0], axis.end_s, f"cleanup: {by_cleanup:,} results, {total:,} before it")
    if expected is not None:
        plot.level(expected, f"expected {expected:,}", "expected")
    running = 0
    for point in points:
        got = point.results.get(detail.session, 0)
        running += got
        text = f"{_epoch(point)}: {got:,} results, {running:,} so far"
        plot.hint(axis.s(point.started_ms), axis.s(point.ended_ms), text)
    added = session.results_corrections
    corrections = "" if added is None else f", {added:,} by corrections, which are not drawn"
    return Chart(
        "Results over time",
        f"{total:,} at run time, {by_cleanup:,} by cleanup{corrections}",
        (("run", "run time"), *([("clean", "cleanup")] if by_cleanup else [])),
        plot.svg(),
    )


def _cleaned_from(
    steps: list[tuple[float, int]], session: SessionStatus
) -> tuple[float, float] | None:
    """When cleanup began and ended, in ms since 1970, as far as that is known."""
    if steps:
        return min(steps[0][0], steps[-1][0] - (session.cleanup_s or 0) * 1000), steps[-1][0]
    if session.ended_at is None or not session.results_cleanup:
        return None
    sealed = datetime.fromisoformat(session.ended_at).timestamp() * 1000
    return sealed, sealed + (session.cleanup_s or 1.0) * 1000


def _stacked(
    total: int,
    by_cleanup: int,
    steps: list[tuple[float, int]],
    span: tuple[float, float],
    axis: _Time,
) -> list[tuple[float, float]]:
    begin = max(axis.s(span[0]), 0.0)
    if not steps:
        return [
            (begin, float(total)),
            (axis.s(span[1]), float(total + by_cleanup)),
            (axis.end_s, float(total + by_cleanup)),
        ]
    upper = [(begin, float(total))]
    height = total
    for written_ms, rows in steps:
        at = axis.s(written_ms)
        upper.append((at, float(height)))
        height += rows
        upper.append((at, float(height)))
    return [*upper, (axis.end_s, float(height))]


def _rates(points: list[Point], axis: _Time) -> Chart:
    def per_s(point: Point, count: int) -> float:
        return count / max((point.ended_ms - point.started_ms) / 1000, 0.001)

    rows = [(p, per_s(p, p.rows)) for p in points]
    highest = max([rate for _, rate in rows] + [1.0]) * 1.08
    plot = Plot((0, axis.end_s), (0, highest), label="Rows read per second, epoch by epoch")
    plot.axis_y(ticks(0, highest), _short, "rows per second")
    axis.draw(plot)
    line: list[tuple[float, float]] = []
    for point, rate in rows:
        a, b = axis.s(point.started_ms), axis.s(point.ended_ms)
        line += [(a, rate), (b, rate)]
        text = f"{_epoch(point)}: {point.rows:,} rows, {rate:,.0f} a second"
        if point.rejected:
            text += f", {point.rejected:,} quarantined"
        plot.hint(a, b, text)
    plot.area(line, None, "rows")
    plot.line(line, "rows")
    return Chart(
        "Intake",
        f"{times_text(sum(p.epochs for p in points), 'epoch')}, each one's rows over its own time",
        (("rows", "rows read per second"),),
        plot.svg(),
    )


def _fullest(points: list[Point]) -> list[int]:
    """Slots to draw: all, or those that were fullest, in order."""
    peaks: dict[int, int] = {}
    for point in points:
        for slot, size in point.state_bytes.items():
            peaks[slot] = max(peaks.get(slot, 0), size)
    ranked = sorted(peaks, key=lambda slot: (-peaks[slot], slot))
    return sorted(ranked[:MOST_SLOTS])


def _against(
    plot: Plot, points: Sequence[Point], budgets: Sequence[int], threshold: float, axis: _Time
) -> None:
    """The budget and the threshold: a line across, with a step where a command changed them."""
    if not points:
        return
    steps = [(0.0, float(budgets[0]))]
    for before, budget in zip(points, budgets[1:], strict=False):
        if budget != steps[-1][1]:
            at = axis.s(before.ended_ms)
            steps += [(at, steps[-1][1]), (at, float(budget))]
    steps.append((axis.end_s, steps[-1][1]))
    plot.levels(steps, f"budget {bytes_text(budgets[-1])}", "budget")
    limits = [(at, threshold * budget) for at, budget in steps]
    plot.levels(limits, f"spills above {100 * threshold:.0f} %", "limit", below=True)


def _memory(
    points: list[Point], slot: int, threshold: float, session: SessionStatus, axis: _Time
) -> Chart:
    budgets = [p.budget_bytes.get(slot, session.budget_bytes) for p in points]
    highest = max([*budgets, 1] + [p.folder_bytes.get(slot, 0) for p in points]) * 1.12
    plot = Plot(
        (0, axis.end_s), (0, highest), label=f"Memory of slot {slot} against its budget", left=72
    )
    plot.axis_y(ticks(0, highest, 4, base=2), bytes_text, "state")
    axis.draw(plot)
    state: list[tuple[float, float]] = [(0.0, 0.0)]
    folder: list[tuple[float, float]] = [(0.0, 0.0)]
    spills = 0
    for point, budget in zip(points, budgets, strict=True):
        at = axis.s(point.ended_ms)
        size, spilled = point.state_bytes.get(slot, 0), point.spilled_bytes.get(slot, 0)
        if spilled and point.epochs == 1:
            # What is journaled is the state after the spill: show what it came from. Rows that
            # found no room have never been state.
            state.append((at, float(min(size + spilled, max(budget, size)))))
        state.append((at, float(size)))
        folder.append((at, float(point.folder_bytes.get(slot, 0))))
        text = f"{_epoch(point)}: {bytes_text(size)} of state"
        plot.hint(axis.s(point.started_ms), at, text)
        if spilled:
            spills += not point.flush
            what = "flushed by the seal" if point.flush else "spilled"
            plot.triangle(
                at,
                min(size + spilled, highest),
                "flush" if point.flush else "spill",
                f"{_epoch(point)}: {bytes_text(spilled)} {what}",
            )
    plot.area(state, None, "state")
    plot.line(state, "state")
    plot.line(folder, "folder")
    _against(plot, points, budgets, threshold, axis)
    flushed = any(p.flush and p.spilled_bytes.get(slot) for p in points)
    marks = (("spill", "spill"), spills), (("flush", "flush at the seal"), flushed)
    return Chart(
        f"Memory of slot {slot}",
        times_text(spills, "spill") + (", then the seal's flush" if flushed else ""),
        (
            ("state", "state"),
            ("folder", "all files of its folder"),
            *(mark for mark, drawn in marks if drawn),
        ),
        plot.svg(),
    )


def _productivity(choices: list[SpillChoice]) -> Chart:
    shown = choices[-MOST_CHOICES:]
    spreads = [s for c in shown for s in (c.kept, c.spilled) if s is not None]
    highest = max([s.p90 for s in spreads] + [10 * LEAST])
    low, high = math.log10(LEAST), math.ceil(math.log10(highest) + 0.05)
    plot = Plot((0, len(shown)), (low, high), label="Productivity of groups kept and spilled")

    def decade(power: float) -> str:
        return "none" if power <= low else f"{10.0**power:,g}"

    step = max(1, round((high - low) / 6))
    plot.axis_y([float(p) for p in range(round(low), round(high) + 1, step)], decade, _PER_KIB)
    every = max(1, len(shown) // 8)
    at = [k + 0.5 for k in range(0, len(shown), every)]
    plot.axis_x(at, lambda k: str(shown[int(k)].epoch), "spills in order, by their epoch")
    for k, choice in enumerate(shown):
        for spread, offset, class_ in ((choice.kept, 0.3, "kept"), (choice.spilled, 0.7, "gone")):
            if spread is None:
                continue
            _spread(plot, k + offset, 0.22, spread.p10, spread.p50, spread.p90, class_)
        kept = "nothing kept"
        if choice.kept is not None:
            kept = f"kept {choice.kept.groups} groups (median {choice.kept.p50:,g})"
        plot.hint(
            k,
            k + 1,
            f"epoch {choice.epoch}, slot {choice.slot}: {kept}, spilled "
            f"{choice.spilled.groups} (median {choice.spilled.p50:,g})",
        )
    better = sum(c.kept is not None and c.kept.p50 >= c.spilled.p50 for c in shown)
    return Chart(
        "Productivity of groups kept and spilled",
        f"in {better} of {times_text(len(shown), 'spill')} the median group kept was at least as "
        "productive as the median group spilled; bars from the 10th to the 90th percentile",
        (("kept", "kept"), ("gone", "spilled")),
        plot.svg(),
    )


_PER_KIB = "results per KiB of state"


def _spread(
    plot: Plot, x: float, width: float, p10: float, p50: float, p90: float, class_: str
) -> None:
    a, b, c = (math.log10(max(p, LEAST)) for p in (p10, p50, p90))
    thin = 0.02 * (plot.y1 - plot.y0)
    plot.bar(x - width / 2, width, a, max(c, a + thin), f"{class_} faint")
    plot.bar(x - width / 2, width, b - thin / 2, b + thin / 2, class_)


PART_CLASSES = ("p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8")


def _epochs(points: list[Point]) -> Chart:
    totals: dict[str, float] = {}
    for point in points:
        for part, seconds in point.seconds.items():
            totals[part] = totals.get(part, 0.0) + seconds
    parts = [part for part, seconds in totals.items() if seconds > 0]
    class_of: Callable[[str], str] = lambda part: PART_CLASSES[  # noqa: E731
        parts.index(part) % len(PART_CLASSES)
    ]
    highest = max([sum(p.seconds.values()) / p.epochs for p in points] + [0.001]) * 1.08
    first, last = points[0].epoch - points[0].epochs + 1, points[-1].epoch + 1
    plot = Plot((first, last), (0, highest), label="Seconds of each epoch by part")
    plot.axis_y(ticks(0, highest), lambda s: f"{s:g}", "seconds an epoch")
    at = [t for t in ticks(first, last, 7) if t == int(t) and t < last]
    plot.axis_x(at, lambda e: f"{e:.0f}", "epoch")
    for point in points:
        start, base = point.epoch - point.epochs + 1, 0.0
        for part in parts:
            seconds = point.seconds.get(part, 0.0) / point.epochs
            plot.bar(start + 0.06, 0.88 * point.epochs, base, base + seconds, class_of(part))
            base += seconds
        shares = ", ".join(
            f"{part} {span_text(s / point.epochs)}" for part, s in point.seconds.items() if s > 0
        )
        plot.hint(start, start + point.epochs, f"{_epoch(point)}: {span_text(base)} ({shares})")
    whole = sum(totals.values())
    longest = max(totals, key=lambda part: totals[part])
    return Chart(
        "Where an epoch's time goes",
        f"{span_text(whole)} in all, {100 * totals[longest] / max(whole, 1e-9):.0f} % of it "
        f"{longest}; the slots' parts are those of the busiest slot",
        tuple((class_of(part), part) for part in parts),
        plot.svg(),
    )


def _epoch(point: Point) -> str:
    if point.epochs == 1:
        return f"epoch {point.epoch}"
    return f"epochs {point.epoch - point.epochs + 1} to {point.epoch}"


def _short(value: float) -> str:
    """`2.5 M`: a count on an axis."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {letter}"
    return f"{value:g}"
