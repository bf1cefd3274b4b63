"""The report: one HTML file that needs nothing but itself.

Invariants:
* No request leaves the page: no script, no font, no image; a content security policy in the page
  forbids them, should one ever slip in.
* Everything that came from outside is escaped, because `spillway.report.svg.tag` escapes what is
  not markup.
* Readable in dark and in light (the reader's own setting), on a telephone and on paper.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from spillway.report import decisions
from spillway.report.charts import Chart, charts
from spillway.report.model import JoinStatus, LossAcceptance, SessionStatus, Status, Verdict
from spillway.report.page_style import STYLE
from spillway.report.query_tree import joins_svg, root_first, where_text
from spillway.report.svg import Safe, joined, tag
from spillway.report.words import (
    bytes_text,
    clock_text,
    count_text,
    ms_text,
    part_text,
    span_text,
)
from spillway_schemas.losses import accepted_text

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
TABLES = {
    "results": "joined rows, each with the phase in which it came",
    "spill": "state that left memory, by hash",
    "quarantine": "rows that broke their contract, with the reason",
    "journal": "one entry an epoch: what counts",
    "statistics": "figures of every partition group",
    "sessions": "what became of each session",
    "commands": "what people asked for",
}

Row = tuple[str, str]


def write_report(status: Status, path: Path, phases: Sequence[Row] = ()) -> None:
    """Write the report of the session in `status.detail` to `path`, whole or not at all. Its
    folder must be there.

    `phases`: more rows for the table of figures, e.g. what each phase of the demo took.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(report_html(status, phases), encoding="utf-8")
    fresh.replace(path)


def report_html(status: Status, phases: Sequence[Row] = ()) -> str:
    """The page. Raises ValueError for a status without detail."""
    if status.detail is None:
        raise ValueError("the report needs a status with its detail")
    session = status.session_of(status.detail.session)
    if session is None:
        raise ValueError(f"the status does not know session {status.detail.session}")
    drawn = charts(status)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"spillway: session {session.session}"),
        tag("style", Safe(STYLE)),
    )
    body = tag(
        "body",
        tag(
            "main",
            _title(status, session),
            _verdict(session),
            _tiles(session),
            tag("section", joined([_figure(chart) for chart in drawn]), class_="charts"),
            tag(
                "section",
                _card("Figures", _pairs(_figures(session, phases))),
                _card("Streams", _streams(status, session)),
                _card("Slots", _slots(status)),
                *_joins(status.detail.joins),
                _card("Decisions", _decisions(status, session)),
                _card("Quarantine", _quarantine(status)),
                _card("Tables", _tables(status)),
                class_="cards",
            ),
            _foot(status),
        ),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _title(status: Status, session: SessionStatus) -> Safe:
    when = clock_text(session.began_at)
    if session.ended_at is not None:
        when += f" to {clock_text(session.ended_at)}"
    return tag(
        "header",
        tag("h1", "Session ", tag("strong", session.session)),
        tag("p", f"query {status.query} · {session.stage} · {when}", class_="muted"),
    )


def _verdict(session: SessionStatus) -> Safe:
    verdict = session.verdict
    if verdict is None:
        if session.unproved:
            words = session.unproved.capitalize()
            says = f"spillway verify --session {session.session} proves it with its corrections"
            return _banner("open", words, says)
        return _banner(
            "open", "Not verified yet", "spillway verify proves a sealed session complete"
        )
    if verdict.complete:
        parts = [
            f"{count_text(verdict.run_time)} at run time",
            f"{count_text(verdict.cleanup)} by cleanup",
        ]
        if session.results_corrections is not None:
            parts.append(f"{count_text(session.results_corrections)} by corrections")
        return _banner(
            "good",
            "Complete: every result, each once",
            f"{count_text(verdict.expected)} expected, {', '.join(parts[:-1])} and {parts[-1]}, "
            f"0 missing, 0 doubled; verified {clock_text(verdict.verified_at)}",
        )
    return _banner("bad", "Not complete", _lacking(verdict, session.accepted_losses))


def _lacking(verdict: Verdict, losses: Sequence[LossAcceptance]) -> str:
    if verdict.missing is None:
        told = [accepted_text(each.by, each.reason) for each in losses]
        seen = f"looked at {clock_text(verdict.verified_at)}"
        return "; ".join(["its input is lost", *told, seen])
    return (
        f"{count_text(verdict.missing)} missing, {count_text(verdict.doubled)} doubled of "
        f"{count_text(verdict.expected)} expected; verified {clock_text(verdict.verified_at)}"
    )


def _banner(kind: str, words: str, detail: str) -> Safe:
    sign = {"good": "✓", "bad": "✗", "open": "…"}[kind]
    return tag(
        "section",
        tag("span", sign, class_="sign", aria_hidden="true"),
        tag("div", tag("h2", words), tag("p", detail)),
        class_=f"verdict {kind}",
    )


def _tiles(session: SessionStatus) -> Safe:
    peak = "–"
    if session.budget_bytes:
        peak = part_text(session.peak_state_bytes / session.budget_bytes)
    tiles = [
        (count_text(sum(session.rows_in.values())), "rows in"),
        (count_text(session.results_run_time), "results at run time"),
        (count_text(session.results_cleanup), "results by cleanup"),
        *_corrections(session),
        (count_text(session.spills), "spills"),
        (peak, "of a slot's budget at most"),
        (ms_text(session.delay_p50_ms), "median production delay"),
    ]
    return tag(
        "section",
        joined(
            [
                tag("div", tag("b", value), tag("span", words), class_="tile")
                for value, words in tiles
            ]
        ),
        class_="tiles",
    )


def _corrections(session: SessionStatus) -> list[Row]:
    """A tile for what corrections have added; nothing where there are none."""
    added = session.results_corrections
    return [] if added is None else [(count_text(added), "results by corrections")]


def _figure(chart: Chart) -> Safe:
    legend = joined(
        [tag("li", tag("i", class_=f"swatch {class_}"), words) for class_, words in chart.legend]
    )
    return tag(
        "figure",
        tag("figcaption", tag("h3", chart.title), tag("p", chart.says, class_="muted")),
        tag("ul", legend, class_="legend"),
        chart.svg,
    )


def _figures(session: SessionStatus, phases: Sequence[Row]) -> list[Row]:
    verdict = session.verdict
    rows = [
        ("rows in", count_text(sum(session.rows_in.values()))),
        ("quarantined", count_text(session.rejected)),
        ("left out by the query's filter", count_text(session.filtered)),
        ("results at run time", count_text(session.results_run_time)),
        ("results by cleanup", count_text(session.results_cleanup)),
        *((name, value) for value, name in _corrections(session)),
    ]
    if verdict is not None:
        rows += [
            ("expected", count_text(verdict.expected)),
            ("missing", count_text(verdict.missing)),
            ("doubled", count_text(verdict.doubled)),
        ]
    budget = bytes_text(session.budget_bytes)
    rows += [
        ("spills", count_text(session.spills)),
        ("of these for want of room", count_text(session.overflows)),
        ("spilled while it ran", bytes_text(session.spilled_bytes)),
        ("of these came back to memory", bytes_text(session.returned_bytes)),
        ("flushed by the seal", bytes_text(session.flushed_bytes)),
        ("rows spilled and flushed", count_text(session.spilled_rows)),
        ("generations (cuts)", count_text(session.generations)),
        ("most generations of one hash range", count_text(session.most_generations)),
        ("peak state of a slot", f"{bytes_text(session.peak_state_bytes)} of {budget}"),
        ("groups moved between slots", count_text(session.moved)),
        ("slots restored", count_text(session.restored_slots)),
        ("lost slots left to cleanup", count_text(session.deferred_slots)),
        (
            "production delay",
            f"p50 {ms_text(session.delay_p50_ms)}, p99 {ms_text(session.delay_p99_ms)}",
        ),
    ]
    if session.cleanup_s is not None:
        rows.append(("cleanup took", span_text(session.cleanup_s)))
    if verdict is not None and verdict.seconds is not None:
        rows.append(("verify took", span_text(verdict.seconds)))
    return [*rows, *phases]


def _streams(status: Status, session: SessionStatus) -> Safe:
    lags = {topic.topic: topic.lag_rows for topic in status.topics}
    return _table(
        ("stream", "rows in", "lag now"),
        [(t, count_text(n), count_text(lags.get(t))) for t, n in session.rows_in.items()],
    )


def _slots(status: Status) -> Safe:
    return _table(
        ("slot", "host", "state now", "budget", "rows", "groups", "moved in", "out", "skew"),
        [
            (
                str(slot.slot),
                slot.host or "local",
                bytes_text(slot.state_bytes),
                bytes_text(slot.budget_bytes),
                count_text(slot.rows),
                count_text(slot.groups),
                count_text(slot.moved_in),
                count_text(slot.moved_out),
                part_text(slot.skew),
            )
            for slot in status.slots
        ],
    )


def _joins(joins: Sequence[JoinStatus]) -> list[Safe]:
    """The tree with its figures, and where its joins run; nothing for one join."""
    if not joins:
        return []
    rows = [(each.join, where_text(each)) for _, each in root_first(joins)]
    picture = tag("div", joins_svg(joins), class_="tree")
    return [_card("Joins", joined([picture, _table(("join", "runs at slots"), rows)]))]


def _decisions(status: Status, session: SessionStatus) -> Safe:
    """The session's; the newest first."""
    began, ended = session.began_at or "", session.ended_at or "~"
    own = [each for each in status.adaptations if began <= each.at <= ended]
    if not own:
        return tag("p", "No group was moved, split or told to spill.", class_="muted")
    return _table(decisions.HEAD, [decisions.cells(each) for each in own])


def _quarantine(status: Status) -> Safe:
    if not status.quarantine:
        return tag("p", "No row broke its contract.", class_="muted")
    rows = [(reason, count_text(count)) for reason, count in status.quarantine.items()]
    return _table(("reason (whole warehouse)", "rows"), rows)


def _tables(status: Status) -> Safe:
    return joined(
        [
            tag("p", "In ", tag("code", status.warehouse_root), class_="muted"),
            _table(("table", "holds"), list(TABLES.items())),
        ]
    )


def _foot(status: Status) -> Safe:
    return tag(
        "footer",
        f"spillway · warehouse {status.warehouse_id} · {count_text(status.entries)} journal "
        f"entries · written {clock_text(status.at)}",
        class_="muted",
    )


def _card(title: str, content: Safe) -> Safe:
    return tag("article", tag("h3", title), tag("div", content, class_="scroll"))


def _pairs(rows: Iterable[Row]) -> Safe:
    body = joined(
        [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in rows]
    )
    return tag("table", tag("tbody", body), class_="pairs")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Safe:
    top = tag("tr", joined([tag("th", name, scope="col") for name in head]))
    body = joined([tag("tr", joined([tag("td", cell) for cell in row])) for row in rows])
    return tag("table", tag("thead", top), tag("tbody", body))
