"""`Status` in a terminal: a few tables with bars of memory.

Works from 40 columns on (the less important columns go first), without colour (a pipe, `NO_COLOR`)
and without Unicode: bars then are made of `#`. Every text that came from outside (topics, hosts,
reasons) is shown as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from spillway.readmodel.tally import SealAnswer
from spillway.readmodel.waiting import OpenLoss, Waiting
from spillway.report.decisions import decisions_table
from spillway.report.model import EventTimeStatus, SessionStatus, SlotStatus, Status
from spillway.report.query_tree import root_first
from spillway.report.words import (
    bytes_text,
    clock_text,
    count_text,
    ms_text,
    part_text,
    rate_text,
    span_text,
    times_text,
    visible,
)
from spillway_schemas.losses import LostRange

NARROW = 76
"""Below so many columns only the main ones are shown."""
TINY = 56
"""Below so many columns counts are shown as one."""
MEDIUM = 92
"""From so many columns on, slots have their budget beside their share of it."""
WIDE = 140
"""From so many columns on, slots have all their figures."""
MOST_RANGES = 4
"""Of what is lost that are named."""
SHOWN = 5
"""Decisions that are shown beside everything else."""
INDENT = "  "
"""Of what a join reads, below it."""
STALE_S = 60.0
"""After so long without an epoch the age is marked (Kafka may just be silent)."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def render(status: Status, console: Console, width: int | None = None) -> RenderableType:
    """What `spillway status` shows."""
    width = console.width if width is None else width
    fancy = unicode_works(console)
    parts: list[RenderableType] = [_head(status, width), Text(), _topics(status, width), Text()]
    parts += [_slots(status, width, fancy), Text()]
    if status.joins:
        parts += [_joins(status, width), Text()]
    if status.hot_keys:
        parts += [_hot_keys(status, width), Text()]
    parts.append(_sessions(status, width))
    if status.sessions_left_out:
        parts.append(Text(_left_out(status), style="dim"))
    if status.adaptations and width >= NARROW:
        parts += [Text(), decisions_table(status, console, SHOWN)]
    if status.quarantine:
        parts += [Text(), _quarantine(status, width)]
    return Group(*parts)


def unicode_works(console: Console) -> bool:
    """Whether the terminal's encoding has the characters of the bars."""
    try:
        _EIGHTHS.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def memory_bar(
    state: int, peak: int, budget: int, threshold: float, cells: int, fancy: bool
) -> Text:
    """Memory in use against its budget, `cells` wide: `|` is the threshold, `·` the peak."""
    if budget <= 0:
        return Text(" " * cells)
    used = min(state / budget, 1.0)
    style = "red" if used > threshold else "yellow" if used > 0.75 * threshold else "green"
    eighths = round(used * cells * 8)
    if used > 0 and eighths == 0:
        eighths = 1
    if fancy:
        body = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
        empty, mark, dot = "░", "│", "·"
    else:
        body = "#" * ((eighths + 4) // 8)
        empty, mark, dot = ".", "|", ":"
    bar = list(body + empty * (cells - len(body)))
    peak_at = min(cells - 1, int(peak / budget * cells))
    if peak_at >= len(body):
        bar[peak_at] = dot
    mark_at = min(cells - 1, int(threshold * cells))
    if mark_at >= len(body):
        bar[mark_at] = mark
    text = Text()
    text.append("".join(bar[: len(body)]), style=style)
    text.append("".join(bar[len(body) :]), style="dim")
    return text


def _head(status: Status, width: int) -> RenderableType:
    age = status.last_epoch_age_s
    open_ = status.session_of(status.session)
    line = Table.grid(padding=(0, 2))
    line.add_column(style="dim", no_wrap=True)
    line.add_column(overflow="fold")
    session = Text(status.session, style="bold")
    if open_ is not None:
        session.append(f"  {_stage(open_)}", style="dim")
    line.add_row("session", session)
    if status.query_problem:
        line.add_row("query", Text(f"{status.query}: {status.query_problem}", style="yellow"))
    line.add_row("stream", _stream(status, width))
    if status.intake_held:
        line.add_row("intake", Text(f"stopped: {visible(status.intake_held)}", style="red"))
    if status.slow_disks:
        line.add_row("disk", Text(status.slow_disks, style="yellow"))
    if status.clocks:
        line.add_row("clocks", Text(visible(status.clocks), style="yellow"))
    if open_ is not None and open_.seal_answers:
        answer = open_.seal_answers[-1]
        about = "loss" if answer.what.startswith("loss") else "seal"
        line.add_row(about, _seal_answer(answer))
    for asked in reversed(status.waiting):
        line.add_row("asked", _asked(asked, status.driver_runs))
    if status.loss is not None:
        for loss in loss_texts(status.loss):
            line.add_row("gone", Text(loss, style="yellow"))
    if open_ is not None and open_.overflows:
        often = 2 * open_.overflows > open_.spills
        line.add_row("spills", Text(overflow_text(open_), style="yellow" if often else ""))
    if open_ is not None and any(open_.outside.values()):
        line.add_row("times", Text(outside_text(open_), style="yellow"))
    for each in status.sessions:
        if each.deferred_slots and each.stage != "cleaned":
            line.add_row("lost", Text(deferred_text(each), style="yellow"))
    epoch = Text(str(status.epoch) if status.epoch >= 0 else "none yet")
    if age is not None:
        epoch.append(f", {span_text(age)} ago", style="yellow" if age > STALE_S else "dim")
    line.add_row("epoch", epoch)
    rates = f"{rate_text(status.rows_per_s, 'rows')}, {rate_text(status.results_per_s, 'results')}"
    line.add_row("rates", Text("–" if status.driver_runs is False else rates))
    line.add_row(
        "delay",
        Text(f"p50 {ms_text(status.delay_p50_ms)}, p99 {ms_text(status.delay_p99_ms)}"),
    )
    if status.event_time is not None:
        expired = 0 if open_ is None else open_.expired_rows
        line.add_row("time", Text("; ".join(event_time_texts(status.event_time, expired))))
    line.add_row("lag", Text(_lag_text(status)))
    if width >= NARROW:
        line.add_row("warehouse", Text(status.warehouse_root))
    return line


def _lag_text(status: Status) -> str:
    if status.lag_rows is not None:
        return f"{count_text(status.lag_rows)} rows"
    missing = [each.topic for each in status.topics if each.lag_rows is None]
    if len(missing) == len(status.topics):
        return "unknown: Kafka does not answer, or lacks the topics"
    return f"unknown: Kafka has no topic {', '.join(missing)}"


def event_time_texts(time: EventTimeStatus, expired: int) -> list[str]:
    """How far the time of a session has come: the watermark, and what it waits for."""
    told = []
    if time.watermark is None:
        told.append(f"no watermark yet: no row of {_partitions(time.unheard)}")
    else:
        at = time.watermark[:19].replace("T", " ")
        ahead = ", ".join(f"{visible(t)} {span_text(s)}" for t, s in time.ahead_s.items())
        told.append(f"watermark {at} UTC, newest rows ahead of it: {ahead}")
    if time.idle:
        told.append(f"idle, not waited for: {_partitions(time.idle)}")
    if expired:
        told.append(f"{count_text(expired)} rows expired")
    return told


def _partitions(named: Mapping[str, Sequence[int]]) -> str:
    """`stock/0, 1, review/2`."""
    return ", ".join(
        f"{visible(topic)}/{', '.join(map(str, numbers))}" for topic, numbers in named.items()
    )


def _stream(status: Status, width: int) -> Text:
    """Whether a driver lives, and which one was the last."""
    if not status.driver:
        return Text("has not begun", style="yellow")
    text = {
        True: Text("runs", style="green"),
        False: Text("does not run", style="yellow"),
        None: Text("runs or not: it cannot be seen from here"),
    }[status.driver_runs]
    if width >= TINY:
        text.append(f"  (term {status.term}, {visible(status.driver)})", style="dim")
    return text


ASKED: Mapping[str, tuple[str, str]] = {
    "seal": ("seal", "seals"),
    "withdraw": ("withdrawal of a seal", "withdrawals of a seal"),
    "accept-loss": ("acceptance of a loss", "acceptances of a loss"),
    "move": ("move of a group", "moves of groups"),
    "spill": ("spill", "spills"),
    "split": ("split of a group", "splits of groups"),
    "merge": ("merge of groups", "merges of groups"),
    "slots": ("change of slots", "changes of slots"),
    "budget": ("change of a budget", "changes of budgets"),
    "unreadable": ("command that cannot be read", "commands that cannot be read"),
}
"""Each kind of command as people are told of one and of several."""


def _asked(each: Waiting, runs: bool | None) -> Text:
    """What waits for a stream to answer it."""
    what = ", ".join(
        ASKED[kind][0] if count == 1 else f"{count_text(count)} {ASKED[kind][1]}"
        for kind, count in each.kinds.items()
    )
    text = Text(f"{what}, session {each.session}" if each.session else what, style="yellow")
    text.append(f" {clock_text(each.issued_at)}" if each.issued_at else "", style="dim")
    text.append(f" by {visible(each.by)}" if each.by else "", style="dim")
    return text.append(": no stream runs" if runs is False else ": waits for the stream")


def overflow_text(session: SessionStatus) -> str:
    """Which spills did not keep their rule, why, and what helps."""
    return (
        f"{session.overflows} of {times_text(session.spills, 'spill')} came before the threshold, "
        "to make room for new rows and merges. Raise state.budget_bytes or lower spill.threshold"
    )


def loss_texts(loss: OpenLoss) -> list[str]:
    """What the open session has lost, and what can be done."""
    texts = []
    if loss.accepted:
        texts.append(f"{ranges_text(loss.accepted)}: accepted as lost, the stream does without it")
    if loss.waits:
        texts.append(f"{ranges_text(loss.waits)}: accepted as lost, waits for the stream")
    if loss.gone:
        lost = f"{ranges_text(loss.gone)}: Kafka does not hold it any more"
        unread = times_text(loss.never_read, "offset")
        cannot = (
            f"{unread} of it before they were read: the stream cannot go on"
            if loss.never_read
            else "a lost slot could not be restored, nor the day proved"
        )
        accept = f"spillway accept-loss --session {loss.session} --reason ..."
        texts.append(f"{lost}, {cannot}. Where nobody has it: {accept}")
    return texts


def ranges_text(ranges: Sequence[LostRange]) -> str:
    """`stock/0 from offset 0 to 4,711, volume/1 from ...`; of many the first ones."""
    more = f" and {len(ranges) - MOST_RANGES} more" if len(ranges) > MOST_RANGES else ""
    return ", ".join(str(each) for each in ranges[:MOST_RANGES]) + more


def outside_text(session: SessionStatus) -> str:
    """Which topics have rows whose time is not of the session's day."""
    named = [
        f"{count_text(rows)} of {count_text(session.rows_in.get(topic))} rows of {visible(topic)}"
        for topic, rows in session.outside.items()
        if rows
    ]
    return (
        f"{', '.join(named)} happened outside the day of {session.session}. They are joined all "
        "the same: see whether a producer's clock is wrong, or rows of another day were sent"
    )


def deferred_text(session: SessionStatus) -> str:
    """What a cleanup that is still to come needs besides the warehouse."""
    return (
        f"{times_text(session.deferred_slots, 'slot')} of {session.session} restarted empty: "
        "cleanup re-reads their rows from Kafka, so keep the topics until then"
    )


def _seal_answer(answer: SealAnswer) -> Text:
    """What the stream last said to who wanted the open session ended or not, or accepted a loss."""
    fine = answer.what in ("withdrawn", "loss accepted")
    text = Text(answer.what, style="" if fine else "yellow")
    text.append(f" {clock_text(answer.at)}", style="dim")
    if answer.by:
        text.append(f", asked for by {visible(answer.by)}", style="dim")
    return text.append(f": {visible(answer.reason)}" if answer.reason else "")


def _topics(status: Status, width: int) -> Table:
    table = _table("stream", "rows in", "quarantined", "lag")
    wide = width >= NARROW
    outside = wide and any(topic.outside is not None for topic in status.topics)
    if wide:
        table.add_column("filtered", justify="right")
        table.add_column("partitions", justify="right")
    if outside:
        table.add_column("outside the day", justify="right")
    for topic in status.topics:
        row: list[RenderableType] = [
            Text(visible(topic.topic)),
            count_text(topic.rows),
            count_text(topic.rejected),
            count_text(topic.lag_rows),
        ]
        if wide:
            row += [count_text(topic.filtered), str(topic.partitions)]
        if outside:
            row.append(Text(count_text(topic.outside), style="yellow" if topic.outside else ""))
        table.add_row(*row)
    return table


def _hot_keys(status: Status, width: int) -> Table:
    """The keys with the most rows in memory."""
    tree = len(status.joins) > 0
    head = (["join"] if tree else []) + ["rows", "of its group"]
    head += ["group", "slot"] if width >= NARROW else []
    table = _table("hottest key", *head)
    for each in status.hot_keys[:SHOWN]:
        cells = {
            "join": visible(each.join),
            "rows": count_text(each.rows),
            "of its group": part_text(each.share),
            "group": each.group,
            "slot": str(each.slot),
        }
        table.add_row(Text(visible(each.key)), *(Text(cells[name]) for name in head))
    return table


def _slots(status: Status, width: int, fancy: bool) -> Table:
    wide, tiny = width >= NARROW, width < TINY
    budgets = not tiny and not NARROW <= width < MEDIUM
    cells = max(8, min(30, width - (78 if budgets else 66))) if wide else 10
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    columns = ["slot", "memory", "state"] + (["budget"] if budgets else [])
    more = ["groups", "in / out", "spills", "spilled"] if wide else []
    if width >= WIDE:
        more += ["peak", "busy", "waits", "skew", "rate"]
    for name in columns + more:
        table.add_column(name, justify="left" if name == "memory" else "right", no_wrap=True)
    for slot in status.slots:
        bar = memory_bar(
            slot.state_bytes,
            slot.peak_state_bytes,
            slot.budget_bytes,
            status.threshold,
            cells,
            fancy,
        )
        row: list[RenderableType] = [str(slot.slot), bar, _share(slot)]
        if budgets:
            row.append(bytes_text(slot.budget_bytes))
        if wide:
            row += [
                count_text(slot.groups),
                f"{count_text(slot.moved_in)} / {count_text(slot.moved_out)}",
                count_text(slot.spills),
                bytes_text(slot.spilled_bytes),
            ]
        if width >= WIDE:
            row += [
                bytes_text(slot.peak_state_bytes),
                part_text(slot.busy),
                part_text(slot.occupancy),
                part_text(slot.skew),
                f"{slot.output_rate:,.0f}",
            ]
        table.add_row(*row)
    return table


def _joins(status: Status, width: int) -> Table:
    """The tree from its root on, a line for each join."""
    head = ["state", "results"]
    head += [] if width < TINY else ["per KiB"]
    head += [] if width < NARROW else ["rows", "groups", "generations", "spilled"]
    table = _table("join", *head)
    for depth, each in root_first(status.joins):
        cells = {
            "state": bytes_text(each.bytes),
            "results": count_text(each.results),
            "per KiB": f"{each.productivity:,.2f}" if each.bytes else "–",
            "rows": count_text(each.rows),
            "groups": count_text(sum(each.groups.values())),
            "generations": count_text(each.cuts),
            "spilled": bytes_text(each.spilled_bytes),
        }
        table.add_row(Text(INDENT * depth + visible(each.join)), *(cells[name] for name in head))
    return table


def _share(slot: SlotStatus) -> str:
    if slot.budget_bytes <= 0:
        return "–"
    return f"{bytes_text(slot.state_bytes)}, {part_text(slot.state_bytes / slot.budget_bytes)}"


def _sessions(status: Status, width: int) -> Table:
    corrected = any(each.results_corrections is not None for each in status.sessions)
    # Where the columns do not fit, their sum does; and what adds up comes before spills.
    wide, tiny = width >= NARROW, width < TINY
    if corrected:
        wide, tiny = width >= MEDIUM, width < NARROW
    named = ["run time", "cleanup", *(["corrections"] if corrected else [])]
    table = _table("session", "stage", *(["results"] if tiny else named))
    table.columns[0].no_wrap = True
    if wide:
        table.add_column("spills", justify="right")
        table.add_column("generations", justify="right")
    table.add_column("verdict", overflow="fold")
    for session in status.sessions:
        parts = [session.results_run_time, session.results_cleanup]
        parts += [session.results_corrections] if corrected else []
        counts = [count_text(each) for each in ([session.results] if tiny else parts)]
        row: list[RenderableType] = [session.session, _stage(session), *counts]
        if wide:
            row += [count_text(session.spills), count_text(session.generations)]
        table.add_row(*row, _verdict(session))
    return table


def _left_out(status: Status) -> str:
    """How many sessions the table does not show, and why nobody misses them."""
    what = times_text(status.sessions_left_out, "older session")
    each = "is" if status.sessions_left_out == 1 else "are"
    unverified = status.unverified_left_out
    but = f" ({count_text(unverified)} not verified)" if unverified else ""
    return f"{what} {each} {'cleaned' if unverified else 'complete'}{but}: see --all"


def _stage(session: SessionStatus) -> str:
    if session.stage == "cleaning":
        return f"cleaning {session.cleanup_ranges_done}/{session.cleanup_ranges}"
    return session.stage


def _verdict(session: SessionStatus) -> Text:
    verdict = session.verdict
    if verdict is None:
        return (
            Text(session.unproved, style="yellow") if session.unproved else Text("–", style="dim")
        )
    if verdict.complete:
        return Text("complete", style="bold green")
    if verdict.missing is None:
        return Text("NOT complete: its input is lost", style="bold red")
    return Text(
        f"NOT complete: {count_text(verdict.missing)} missing, "
        f"{count_text(verdict.doubled)} doubled",
        style="bold red",
    )


def _quarantine(status: Status, width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("quarantined", justify="right", no_wrap=True)
    table.add_column(
        "reason (whole warehouse)", overflow="ellipsis", no_wrap=True, max_width=max(20, width - 14)
    )
    shown = list(status.quarantine.items())
    for reason, rows in shown[:5]:
        table.add_row(count_text(rows), Text(visible(reason)))
    if len(shown) > 5:
        rest = sum(rows for _, rows in shown[5:])
        table.add_row(count_text(rest), Text(times_text(len(shown) - 5, "other reason")))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name == "stage" else "right")
    return table


def updated_text(status: Status) -> Text:
    """The last line of `--watch`."""
    return Text(f"{clock_text(status.at)}   Ctrl-C ends this", style="dim")
