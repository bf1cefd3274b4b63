"""Named queries under Airflow: a section, DAGs, a page and a stream for each, from one setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from spillway_airflow import sections
from spillway_airflow.command import program
from spillway_airflow.launchers import LaunchFailed, ProcessLauncher, launcher
from spillway_airflow.sections import INHERITED, NamedQuery, named_query, setting
from tests.unit.test_airflow_edges import dags_folder, loaded

TWO = '[queries.trades]\nquery = "trades.toml"\n[queries.quotes]\nquery = "symbol"\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Spillway's settings file, as Airflow's configuration names it."""
    path = tmp_path / "spillway.toml"
    path.write_text(TWO)
    said("config", str(path), monkeypatch)
    return path


def said(name: str, value: str, patch: pytest.MonkeyPatch, section: str = "spillway") -> None:
    patch.setenv(f"AIRFLOW__{section.upper()}__{name.upper()}", value)


def test_each_named_query_has_a_section(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sections.sections() == ["spillway_trades", "spillway_quotes"]
    file.write_text(f'query = "symbol_minute"\n{TWO}')
    assert sections.sections() == ["spillway", "spillway_trades", "spillway_quotes"]
    file.write_text(f'query = "quotes"\n{TWO}')
    assert sections.sections() == ["spillway_trades", "spillway_quotes"]
    said("sections", "london", monkeypatch)
    assert sections.sections() == ["spillway_trades", "spillway_quotes", "london"]
    for text in ("", "[state]\nslots = 2\n", "not TOML"):
        file.write_text(text)
        assert sections.sections() == ["spillway", "london"]
    file.unlink()
    assert sections.sections() == ["spillway", "london"]


def test_it_knows_its_query_and_has_what_is_said_of_all(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert named_query("spillway_trades") == NamedQuery("spillway", "trades")
    assert named_query("spillway") is None
    assert named_query("spillway_other") is None
    assert program(section="spillway_trades")[1:] == ["--config", str(file), "--query", "trades"]
    said("calendar", "XLON", monkeypatch)
    assert setting("calendar", "spillway_trades") == "XLON"
    said("calendar", "XPAR", monkeypatch, "spillway_trades")
    assert setting("calendar", "spillway_trades") == "XPAR"
    assert setting("calendar", "spillway_quotes") == "XLON"
    assert setting("calendar", "london") is None


@pytest.mark.parametrize("name", ["service_folder", "dag_prefix", "start", "kubernetes_deployment"])
def test_two_streams_share_no_place(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said(name, "x", monkeypatch)
    assert setting(name, "spillway_trades") is None
    assert name not in INHERITED


def test_each_has_a_stream_of_its_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [launcher(section=each) for each in sections.sections()]
    assert all(isinstance(each, ProcessLauncher) for each in found)
    assert len({each.folder for each in found}) == 2  # type: ignore[attr-defined]
    said("launcher", "command", monkeypatch)
    for name in ("start", "stop", "status"):
        said(name, f"systemctl {name} spillway", monkeypatch)
    with pytest.raises(LaunchFailed, match=r"needs \[spillway_trades\] start, stop and status"):
        launcher(section="spillway_trades")


def test_each_has_dags_of_its_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said("calendar", "XLON", monkeypatch)
    found = loaded(dags_folder() / "trading_day.py", monkeypatch)
    assert len(found) == 10
    for query in ("trades", "quotes"):
        mine = {name: dag for name, dag in found.items() if name.startswith(f"spillway_{query}_")}
        assert len(mine) == 5
        owners = {task.section for dag in mine.values() for task in dag.tasks}
        assert owners == {f"spillway_{query}"}
        close = mine[f"spillway_{query}_market_close"]
        assert close.timetable.calendar == "XLON"  # type: ignore[attr-defined]
