"""Decisions to move, split, merge and spill, in words: the same in terminal, demo and page."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from spillway.report.model import DecisionStatus, Status
from spillway.report.words import bytes_text, count_text, times_text, visible

MOST_SLOTS = 6
"""More slots than so many: only the least and the most memory are shown."""
HEAD = ("when", "by", "did", "memory before", "after", "results since", "why")


def did(each: DecisionStatus) -> str:
    """`12 moves (34 MiB), 3 waiting`; `2 refused` alone when nothing was obeyed."""
    parts = [
        f"{count} slots" if kind == "slots" else times_text(count, kind)
        for kind, count in each.obeyed.items()
    ]
    text = ", ".join(parts)
    if each.obeyed and each.bytes:
        text += f" ({bytes_text(each.bytes)})"
    if each.waiting:
        text += f", {count_text(each.waiting)} waiting"
    if each.refused:
        count = sum(each.refused.values())
        text += (", " if text else "") + f"{count_text(count)} refused"
    return text


def memory(slots: dict[int, int]) -> str:
    """`81 / 40 MiB` of few slots, `4 to 81 MiB` of many."""
    if not slots:
        return "–"
    sizes = [size for _, size in sorted(slots.items())]
    if len(sizes) > MOST_SLOTS:
        return f"{bytes_text(min(sizes))} to {bytes_text(max(sizes))}"
    return " / ".join(bytes_text(size) for size in sizes)


def why(each: DecisionStatus) -> str:
    """The reason, and why the rest was refused."""
    refused = [
        f"refused: {reason}" + (f" ({count}x)" if count > 1 else "")
        for reason, count in each.refused.items()
    ]
    return visible("; ".join([*([each.reason] if each.reason else []), *refused]))


def cells(each: DecisionStatus) -> tuple[str, ...]:
    """One decision, by `HEAD`."""
    return (
        each.at[11:19],
        visible(each.policy or "a person"),
        did(each),
        memory(each.before),
        memory(each.after) if each.done_epoch is not None else "under way",
        count_text(each.results_since),
        why(each),
    )


LEAST_WHY = 24
"""Columns that reasons need beside the other figures; with less each decision has lines."""


def decisions_table(status: Status, console: Console, most: int | None = None) -> RenderableType:
    """The newest decisions first: a row for each, or some lines where a row would be cut.

    Of `most` decisions only half are shown when they take lines.
    """
    rows = [cells(each)[:-1] for each in status.adaptations[:most]]
    taken = [max(map(len, column)) + 2 for column in zip(HEAD[:-1], *rows, strict=True)]
    wide = sum(taken) + LEAST_WHY <= console.width
    if wide:
        return _rows(status, most)
    return _lines(status, None if most is None else (most + 1) // 2)


def _lines(status: Status, most: int | None) -> Table:
    """The same in three columns: time, what a line is about, and that."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for each in status.adaptations[:most]:
        when, by, did_, before, after, since, reason = cells(each)
        table.add_row(Text(when), Text(by, style="not dim"), Text(f"{did_}; {since} results since"))
        table.add_row("", "memory", Text(f"{before}, after: {after}"))
        if reason:
            table.add_row("", "why", Text(reason))
    return table


def _rows(status: Status, most: int | None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in HEAD:
        last = name == "why"
        table.add_column(
            name,
            justify="right" if name == "results since" else "left",
            overflow="fold" if last else "ellipsis",
            no_wrap=not last,
            ratio=1 if last else None,
        )
    for each in status.adaptations[:most]:
        table.add_row(*map(Text, cells(each)))
    return table
