"""The terminal view: any width, any terminal, and text from outside stays text."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console
from typer.testing import CliRunner

from spillway.cli import app
from spillway.readmodel.cache import ReadCache
from spillway.report.looking import Looker
from spillway.report.model import Status, Verdict
from spillway.report.shown import show_status
from spillway.report.status import status
from spillway.report.terminal import ASKED, memory_bar, render
from spillway.report.words import (
    bytes_text,
    count_text,
    or_text,
    rate_text,
    span_text,
    times_text,
    visible,
)
from spillway.tables import DamagedTable, NothingYet, NoWarehouse, SessionEvent
from spillway_schemas.commands import CommandLine
from spillway_schemas.settings import load_settings
from tests.commands import command_of
from tests.report_journal import (
    DAY,
    NEXT,
    add_quarantine,
    fill_journal,
    make_day,
    open_warehouse,
    verdict,
    withdraw_a_seal,
)
from tests.unit.test_group_states import write


@pytest.fixture(autouse=True)
def own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))


@pytest.fixture
def settings(tmp_path):
    overrides = {
        "warehouse.root": str(tmp_path / "w"),
        "kafka.bootstrap_servers": "127.0.0.1:9",  # nobody listens there
    }
    return load_settings(overrides=overrides, environ={})[0]


@pytest.fixture
def found(settings) -> Status:
    warehouse = open_warehouse(settings.warehouse.root)
    made = make_day(60, seal_after=40)
    fill_journal(warehouse, made.entries)
    add_quarantine(warehouse, 0, ["[red]not JSON[/red]", "a\x1b[2Jb\nc"])
    warehouse.sessions.append(verdict(False, missing=3, doubled=1))
    return status(warehouse, settings, made.now(), None)


def shown(found: Status, width: int, **console) -> str:
    out = Console(file=io.StringIO(), width=width, **console)
    out.print(render(found, out), highlight=False)
    return out.file.getvalue()


@pytest.mark.parametrize("width", [40, 50, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(found, width):
    text = shown(found, width)
    assert max(len(line) for line in text.splitlines()) <= width
    for word in (DAY, "sealed", "NOT", "stock", "59", "slot"):
        assert word in text.replace("\n", " "), word


def test_whether_the_stream_runs_is_told(found):
    def of(**changes) -> str:
        return shown(found.model_copy(update=changes), 80)

    assert "runs  (term 1, host/1)" in of(driver_runs=True)
    assert "does not run  (term 1, host/1)" in of(driver_runs=False)
    assert "runs or not: it cannot be seen from here" in of(driver_runs=None)
    rates = {"rows_per_s": 1857.0, "results_per_s": 4.0}
    assert re.search("rates +1,857 rows/s, 4.0 results/s", of(driver_runs=True, **rates))
    assert re.search("rates +1,857 rows/s, 4.0 results/s", of(driver_runs=None, **rates))
    assert re.search("rates +– *\n", of(driver_runs=False, **rates)), "nothing is read now"
    assert "has not begun" in of(driver="", term=0)
    assert "(term 1" not in shown(found.model_copy(update={"driver_runs": True}), 50)


def test_what_waits_for_the_stream_is_told(settings, found):
    warehouse = open_warehouse(settings.warehouse.root)
    common = {"by": "eve", "issued_at": "2026-01-05T20:00:00Z"}
    warehouse.commands.append(
        command_of("seal", "seal/x/1", session=NEXT, **common),
        command_of("spill", "m/0", slot=0, bytes=1),
        command_of("spill", "m/1", slot=1, bytes=1),
    )
    now = status(warehouse, settings, datetime.now(UTC), None)
    text = shown(now, 100)
    assert f"seal, session {NEXT} 2026-01-05 20:00:00 UTC by eve: waits for the stream" in text
    assert "2 spills: waits for the stream" in text
    text = shown(now.model_copy(update={"driver_runs": False}), 100)
    assert "2 spills: no stream runs" in text


def test_every_kind_of_command_has_its_words() -> None:
    assert set(ASKED) == {each.model_fields["kind"].default for each in get_args(CommandLine)}


def test_what_waits_is_told_beside_what_has_expired(settings, found):
    warehouse, memory = open_warehouse(settings.warehouse.root), ReadCache()
    old = {"slot": 0, "bytes": 1, "expires_at": "2026-01-05T14:00:00Z"}
    warehouse.commands.append(command_of("spill", "o/0", **old))
    warehouse.commands.append(command_of("seal", "s/0", session=NEXT))
    warehouse.commands.append(command_of("spill", "o/1", **old))
    for _ in range(2):
        state = status(warehouse, settings, datetime.now(UTC), None, memory=memory)
        assert [each.id for each in state.waiting] == ["s/0"]


def test_a_query_that_is_not_the_warehouse_s_is_told(settings, found, tmp_path):
    warehouse = open_warehouse(settings.warehouse.root)
    state = status(warehouse, settings, datetime.now(UTC), None)
    assert (state.query_problem, "not the one by which" in shown(state, 100)) == ("", False)
    for query, problem in (
        ("symbol_minute", f"it is not the one by which {state.session} runs"),
        ("q.toml", "q.toml"),
    ):
        other = settings.model_copy(update={"query": query})
        state = status(warehouse, other, datetime.now(UTC), None)
        assert problem in state.query_problem
        assert f"{query}: " in shown(state, 100)


def test_everything_is_there_when_there_is_room(found):
    text = shown(found, 120)
    day = found.session_of(DAY)
    for word in (
        found.warehouse_root,
        count_text(day.results_run_time),
        count_text(day.generations),
        "3 missing, 1 doubled",
        "Kafka does not answer",
        bytes_text(found.slots[0].state_bytes),
        "host/1",
    ):
        assert word in text, word


def test_no_colour_and_no_control_characters_in_a_pipe(found):
    text = shown(found, 100)
    assert "\x1b" not in text
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "\x1b[" in shown(found, 100, force_terminal=True, color_system="standard")


def test_a_withdrawn_seal_is_told(settings):
    warehouse = open_warehouse(settings.warehouse.root)
    made = withdraw_a_seal(make_day(16))
    fill_journal(warehouse, made.entries[:-3])
    head = shown(status(warehouse, settings, made.now(), None), 100)
    at = made.entries[-16 + 12].written_at
    line = f"seal       withdrawn {at[:10]} {at[11:19]} UTC, asked for by bob: too early"
    assert line in [each.rstrip() for each in head.splitlines()]


@pytest.mark.parametrize(("width", "place"), [(100, ["3/6", "1"]), (70, [])])
def test_the_hottest_keys_are_named(settings, width, place):
    warehouse = open_warehouse(settings.warehouse.root)
    made = make_day(6, groups_depth=3)
    fill_journal(warehouse, made.entries)
    write(warehouse, 1, [(0, 0, 10, True)], hot="A\x1bB")
    write(warehouse, 2, [(1, 7, 9, True), (1, 6, 9, True)], hot="ACME")
    found = status(warehouse, settings, made.now(), None)
    assert [(each.key, each.rows) for each in found.hot_keys] == [("ACME", 2), ("A\x1bB", 1)]
    assert Status.model_validate_json(found.model_dump_json()).hot_keys == found.hot_keys
    lines = [line.split() for line in shown(found, width).splitlines()]
    at = next(i for i, line in enumerate(lines) if line[:2] == ["hottest", "key"])
    first, second = lines[at + 1 : at + 3]
    assert first == ["ACME", "2", "50", "%", *place]
    assert second[:2] == ["A\\x1bB", "1"]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_groups_and_moves_of_slots_are_shown(found, width):
    moved = [
        s.model_copy(update={"groups": 17, "moved_in": 12, "moved_out": 3}) for s in found.slots
    ]
    text = shown(found.model_copy(update={"slots": moved}), width)
    assert "12 / 3" in text
    assert text.count("17") >= len(moved)
    assert ("budget" in text) == (width >= 92)


def test_text_from_outside_is_no_markup(found):
    text = shown(found, 100)
    assert "[red]not JSON[/red]" in text
    assert "a\\x1b[2Jb\\nc" in text


def test_a_terminal_without_unicode_gets_plain_bars(found):
    out = Console(file=io.TextIOWrapper(io.BytesIO(), "ascii", errors="replace"), width=80)
    out.print(render(found, out), highlight=False)
    out.file.flush()
    text = out.file.buffer.getvalue().decode("ascii")
    assert "#" in text
    assert "|" in text


@pytest.mark.parametrize("fancy", [True, False])
@pytest.mark.parametrize("cells", [8, 10, 30])
@pytest.mark.parametrize("state", [0, 1, 500, 899, 900, 901, 1000, 1500])
def test_a_bar_is_as_wide_as_asked(state, cells, fancy):
    bar = memory_bar(state, max(state, 950), 1000, 0.9, cells, fancy)
    assert len(bar.plain) == cells
    full = "█" if fancy else "#"
    assert abs(bar.plain.count(full) - min(state, 1000) / 1000 * cells) <= 1
    if state:
        assert ("red" in str(bar.spans[0].style)) == (state > 900)


def test_a_bar_without_a_budget_is_empty():
    assert memory_bar(5, 5, 0, 0.9, 8, True).plain == " " * 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(1023), "1.00 KiB"),
        (bytes_text(1 << 20), "1.00 MiB"),
        (bytes_text(1023 * 1024), "1.00 MiB"),
        (bytes_text(345 << 20), "345 MiB"),
        (bytes_text(5 << 40), "5.00 TiB"),
        (bytes_text(None), "–"),
        (count_text(1234567), "1,234,567"),
        (rate_text(0.25, "rows"), "0.2 rows/s"),
        (rate_text(1234.5, "rows"), "1,234 rows/s"),
        (span_text(0.25), "250 ms"),
        (span_text(0.9999), "1.0 s"),
        (span_text(59.94), "59.9 s"),
        (span_text(61), "1 min 1 s"),
        (span_text(3600), "1 h"),
        (span_text(90_000), "1 d 1 h"),
        (span_text(None), "–"),
        (or_text(["a"]), "a"),
        (or_text(["a", "b"]), "a or b"),
        (or_text(["a", "b", "c"]), "a, b or c"),
        (times_text(1, "spill"), "1 spill"),
        (times_text(1200, "spill"), "1,200 spills"),
        (visible("ok é 中"), "ok é 中"),
        (visible("a\tb\x00"), "a\\tb\\x00"),
    ],
)
def test_numbers_as_words(text, expected):
    assert text == expected


def test_the_command_prints_json(settings, found):
    out = Console(file=io.StringIO())
    show_status(settings, out, as_json=True)
    [line] = out.file.getvalue().splitlines()
    again = Status.model_validate_json(line)
    assert again.sessions == found.sessions
    assert again.lag_rows is None


def test_a_day_whose_input_is_lost_is_not_said_to_lack_so_many_results(found):
    verdict = Verdict(
        complete=False, expected=None, run_time=3, cleanup=0, missing=None, doubled=None,
        seconds=0.1, verified_at="2026-01-05T22:00:00+00:00",
    )  # fmt: skip
    sessions = [each.model_copy(update={"verdict": verdict}) for each in found.sessions]
    text = shown(found.model_copy(update={"sessions": sessions}), 160)
    assert "NOT complete: its input is lost" in text
    assert "– missing" not in text


@pytest.mark.parametrize(
    ("left_out", "unverified", "says"),
    [
        (1, 0, "1 older session is complete: see --all"),
        (240, 0, "240 older sessions are complete: see --all"),
        (240, 39, "240 older sessions are cleaned (39 not verified): see --all"),
    ],
)
def test_sessions_that_are_left_out_are_counted(found, left_out, unverified, says):
    update = {"sessions_left_out": left_out, "unverified_left_out": unverified}
    assert says in shown(found.model_copy(update=update), 80)
    assert "older" not in shown(found, 80)


def test_the_command_leaves_old_complete_sessions_out_unless_it_is_asked(
    settings, found, monkeypatch
):
    """Kills: JSON or a report that lacks sessions."""
    monkeypatch.setattr("spillway.report.shown.SESSIONS", 1)
    monkeypatch.setenv("SPILLWAY_WAREHOUSE__ROOT", settings.warehouse.root)
    monkeypatch.setenv("SPILLWAY_KAFKA__BOOTSTRAP_SERVERS", settings.kafka.bootstrap_servers)
    warehouse = open_warehouse(settings.warehouse.root)

    def told(*options: str) -> str:
        done = CliRunner().invoke(app, ["status", *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert f"{DAY}  sealed" in told()  # an incomplete day is never left out
    warehouse.sessions.append(SessionEvent(session=DAY, event="cleaned"))
    warehouse.sessions.append(verdict(True))
    assert f"{DAY}  cleaned" not in told()
    assert "1 older session is complete" in told()
    assert f"{DAY}  cleaned" in told("--all")
    assert "older" not in told("--all")
    whole = Status.model_validate_json(told("--json"))
    assert [each.session for each in whole.sessions] == [NEXT, DAY]


def test_watching_leaves_them_out_as_well(settings, found, monkeypatch):
    warehouse = open_warehouse(settings.warehouse.root)
    warehouse.sessions.append(SessionEvent(session=DAY, event="cleaned"))
    warehouse.sessions.append(verdict(True))
    monkeypatch.setattr("spillway.report.shown.SESSIONS", 1)
    monkeypatch.setattr("spillway.report.shown.time.sleep", interrupt)
    for terminal in (False, True):
        out = Console(file=io.StringIO(), width=80, force_terminal=terminal)
        show_status(settings, out, watch=True)
        assert "1 older session is complete" in out.file.getvalue()


def interrupt(seconds: float) -> None:
    raise KeyboardInterrupt


def test_the_command_tells_nothing_yet_from_damage(settings, tmp_path):
    """The command line gives the first two an exit code of their own."""
    out = Console(file=io.StringIO())
    with pytest.raises(NoWarehouse):
        show_status(settings, out, as_json=True)
    open_warehouse(settings.warehouse.root)
    with pytest.raises(NothingYet):
        show_status(settings, out, as_json=True)
    [entry] = (tmp_path / "w" / "journal" / "_delta_log").glob("*.json")
    entry.write_text("")
    with pytest.raises(DamagedTable):
        show_status(settings, out, as_json=True)
    assert out.file.getvalue() == ""


def test_the_command_writes_the_report(settings, found, tmp_path):
    out = Console(file=io.StringIO(), width=60)
    path = tmp_path / "a" / "report.html"
    path.parent.mkdir()
    show_status(settings, out, report=path)
    assert str(path) in out.file.getvalue().replace("\n", "")
    assert DAY in path.read_text()
    assert [p.name for p in Path(path.parent).iterdir()] == ["report.html"]


def test_watching_a_pipe_goes_on_until_it_is_interrupted(settings, found, monkeypatch):
    looks = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("spillway.report.shown.time.sleep", pause)
    out = Console(file=io.StringIO())
    show_status(settings, out, as_json=True, watch=True)
    assert len(out.file.getvalue().splitlines()) == 3


def test_watching_waits_for_the_warehouse(settings, monkeypatch):
    made = make_day(5)
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal shows nothing that moves
    looks = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            fill_journal(open_warehouse(settings.warehouse.root), made.entries)
        if len(looks) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("spillway.report.shown.time.sleep", pause)
    out = Console(file=io.StringIO(), force_terminal=True, width=80, height=30)
    show_status(settings, out, watch=True)
    text = out.file.getvalue()
    assert "waiting ..." in text
    assert "Ctrl-C ends this" in text


def test_without_a_warehouse_the_error_says_what_to_do(settings):
    with pytest.raises(NoWarehouse, match="spillway stream"):
        Looker(settings).look()


def test_spills_for_want_of_room_are_told_with_what_helps(settings) -> None:
    warehouse = open_warehouse(settings.warehouse.root)
    made = make_day(60)
    fill_journal(warehouse, made.entries)
    found = status(warehouse, settings, made.now(), None)
    said = " ".join(shown(found, 80).split())
    assert f"{made.overflows} of {made.spills} spills came before the threshold" in said
    assert "Raise state.budget_bytes or lower spill.threshold" in said
    kept = found.sessions[0].model_copy(update={"overflows": 0})
    rest = [kept, *found.sessions[1:]]
    assert "threshold:" not in shown(found.model_copy(update={"sessions": rest}), 80)


@pytest.mark.parametrize(("width", "heads"), [(40, False), (60, False), (80, True), (140, True)])
def test_the_columns_of_a_corrected_day_add_up(found: Status, width: int, heads: bool) -> None:
    """Without them 247,364 and 673,134 stood beside a verdict on 922,913."""
    parts = {"results_run_time": 247_364, "results_cleanup": 673_134, "results_corrections": 2_415}
    told = {"unproved": "corrected, not proved again", "verdict": None}
    newest, *others = found.sessions
    day = newest.model_copy(update={**parts, **told})
    text = shown(found.model_copy(update={"sessions": [day, *others]}), width)
    assert max(len(line) for line in text.splitlines()) <= width
    for part in parts.values() if heads else (922_913,):
        assert f"{part:,}" in text
    assert ("corrections" in text) == heads
    words = text.replace("\n", " ").split()
    assert all(word in words for word in day.unproved.split())
    assert "corrections" not in shown(found, width)


def test_what_cleanup_still_needs_kafka_for_is_told(settings, found):
    first = found.sessions[0].model_copy(update={"deferred_slots": 2, "stage": "sealed"})
    told = f"2 slots of {first.session} restarted empty: cleanup re-reads their rows from Kafka"
    for stage in ("open", "ending", "sealed", "cleaning"):
        sessions = [first.model_copy(update={"stage": stage}), *found.sessions[1:]]
        text = shown(found.model_copy(update={"sessions": sessions}), 80)
        assert told in " ".join(text.split())
    done = [first.model_copy(update={"stage": "cleaned"}), *found.sessions[1:]]
    assert "restarted empty" not in shown(found.model_copy(update={"sessions": done}), 80)
    assert "restarted empty" not in shown(found, 80)
