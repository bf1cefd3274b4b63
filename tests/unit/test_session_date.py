"""A session's date has one form, wherever it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spillway.cli import main
from spillway.decode import tree_spec
from spillway.engine.join.results import result_schema
from spillway.engine.spill.spillfile import spill_schema
from spillway.stream.genesis import first_entry
from spillway.tables import Warehouse
from spillway_schemas.query import load_query
from spillway_schemas.session_date import SessionDateError, session_date
from spillway_schemas.settings import load_settings
from tests.report_journal import DAY, NEXT, fill_journal, make_day

WRONG = [
    ("2026-1-5", "write 2026-01-05"),
    ("20260105", "write 2026-01-05"),
    ("2026/01/05", "write 2026-01-05"),
    (" 2026-01-05", "write 2026-01-05"),
    ("2026-02-30", "there is no day 2026-02-30"),
    ("2026-2-30", "there is no day 2026-02-30"),
    ("20261301", "there is no day 2026-13-01"),
    ("0000-01-01", "there is no day 0000-01-01"),
    ("2026-W02-1", "write YYYY-MM-DD, e.g. 2026-01-05"),
    ("tomorrow", "write YYYY-MM-DD, e.g. 2026-01-05"),
    ("today", "write YYYY-MM-DD, e.g. 2026-01-05"),
    ("", "write YYYY-MM-DD, e.g. 2026-01-05"),
    ("٢٠٢٦-٠١-٠٥", "write YYYY-MM-DD, e.g. 2026-01-05"),
]
COMMANDS = [
    ["stream", "--session"],
    ["stream", "--until-sealed"],
    ["seal", "--session"],
    ["seal", "--withdraw", "--session"],
    ["cleanup", "--session"],
    ["verify", "--session"],
    ["quarantine", "list", "--session"],
]


@pytest.mark.parametrize(("text", "says"), WRONG)
def test_other_forms_are_refused_with_the_one_that_is_meant(text: str, says: str) -> None:
    with pytest.raises(SessionDateError) as refused:
        session_date(text)
    assert str(refused.value) == f"{text!r} is not a session's date: {says}"


def test_the_canonical_form_stays_as_it_is() -> None:
    assert session_date("2026-01-05") == "2026-01-05"
    assert session_date("2024-02-29") == "2024-02-29"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_refuses_them_before_it_does_anything(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    monkeypatch.setenv("COLUMNS", "200")
    root = tmp_path / "w"
    with pytest.raises(SystemExit) as it:
        main(["--set", f"warehouse.root={root}", *command, "2026-1-5"])
    assert it.value.code == 2
    assert "'2026-1-5' is not a session's date: write 2026-01-05" in capsys.readouterr().err
    assert not root.exists()


class Untouched:
    """A cluster that nobody may ask."""

    def __getattr__(self, name: str) -> Any:
        pytest.fail(f"Kafka was asked for {name}")


def test_no_journal_begins_with_one() -> None:
    settings = load_settings(None, {})[0]
    with pytest.raises(SessionDateError, match="write 2026-01-05"):
        first_entry(settings, "q", ["stock"], Untouched(), session="2026-1-5", now_ms=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("session", [NEXT, "1999-01-04"])
@pytest.mark.parametrize("command", [["stream"], ["seal"]], ids=" ".join)
def test_a_session_that_is_not_open_is_told_alike(
    command: list[str],
    session: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its form is right, so it is no wrong usage: the warehouse has another session open."""
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    monkeypatch.setattr("spillway.doctor.check_all", lambda *_, **__: [])
    root = tmp_path / "w"
    query = load_query(load_settings(None, {})[0].query)
    spec = tree_spec(query)
    begun, *more = make_day(3).entries
    begun = begun.model_copy(update={"query": query.fingerprint})
    columns = {"results": result_schema(spec), "spill": spill_schema(spec)}
    warehouse = Warehouse(str(root), **columns, fsync=False)
    fill_journal(warehouse, [begun, *more])
    with pytest.raises(SystemExit) as it:
        main(["--set", f"warehouse.root={root}", *command, "--session", session])
    assert it.value.code == 3
    assert f"not the open session: that is {DAY}" in capsys.readouterr().err
    assert not (tmp_path / "var" / "last-error.txt").exists(), "nothing is wrong with the program"


def test_a_withdrawal_has_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as it:
        main(["seal", "--session", DAY, "--withdraw", "--at", "now"])
    assert it.value.code == 2
    assert "leave out --at" in capsys.readouterr().err
