"""`spillway verify` as its user sees it: told from the first second, and refused at once."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spillway.cli import main
from spillway.stream import session
from spillway.verify import proof
from spillway.verify.progress import VerifyProgress, tasks_of, to_stderr
from spillway.verify.verdicts import TOTALS, JudgedKeys
from spillway_schemas.query import load_query
from tests.report_journal import DAY, fill_journal, make_day, open_warehouse


def test_a_line_is_told_before_anything_heavy_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    given: list[tuple[str, bool]] = []

    def prove(start: Any, *what: Any, progress: VerifyProgress, exhaustive: bool, **_: Any) -> Any:
        given.append((what[2], exhaustive))
        progress.step("starting Spark")
        start()
        verdict = {"complete": True}
        return SimpleNamespace(to_dict=lambda: verdict)

    class Heavy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name == "verify":
                told.append(capsys.readouterr().err)
                return prove
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "spillway.verify.proof", Heavy("spillway.verify.proof"))
    monkeypatch.setattr("spillway.commands.given.warehouse", lambda _: None)
    monkeypatch.setattr("spillway.commands.given.session_query", lambda *_: None)
    spark = SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr(session, "spark_session", lambda *_: spark)
    run(DAY)
    assert told == [f"verify {DAY}: reading the journal\n"]
    seen = capsys.readouterr()
    assert seen.err == f"verify {DAY}: starting Spark\nverify {DAY}: stopping Spark\n"
    assert json.loads(seen.out) == {"complete": True}
    run(DAY, "--exhaustive")
    assert given == [(DAY, False), (DAY, True)]


def run(day: str, *more: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["verify", "--session", day, "--json", *more])
    assert not end.value.code


@pytest.mark.parametrize(
    ("how_far", "again"),
    [(lambda: "1 of 2 tasks", ", 1 of 2 tasks, 0 s"), (lambda: "", ", 0 s"), (None, ", 0 s")],
)
def test_a_long_step_is_told_again_with_how_far_it_is(
    how_far: Callable[[], str] | None, again: str
) -> None:
    lines: list[str] = []
    enough = threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            enough.set()

    with VerifyProgress(DAY, tell, again_s=0.001) as progress:
        progress.step("reading", how_far)
        assert enough.wait(10)
    after = len(lines)
    assert lines[0] == f"verify {DAY}: reading"
    assert set(lines[1:]) == {f"verify {DAY}: reading{again}"}
    assert not progress._teller.is_alive()
    assert len(lines) == after


def test_nothing_is_told_before_the_first_step_and_then_without_how_far() -> None:
    lines: list[str] = []
    enough = threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            enough.set()

    with VerifyProgress(DAY, tell, again_s=0.001) as progress:
        assert not enough.wait(0.05)
        assert lines == []
        assert ("progress", True) in [(t.name, t.daemon) for t in threading.enumerate()]
        progress.step("reading")
        assert enough.wait(10)
    assert lines[0] == f"verify {DAY}: reading"
    assert set(lines[1:]) == {f"verify {DAY}: reading, 0 s"}


@pytest.mark.parametrize("fails", [False, True])
def test_spark_is_not_asked_how_far_it_is_once_it_stops(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    lines: list[str] = []
    stopped, asked_after = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        assert not asked_after.wait(0.1)

    def how_far() -> str:
        if stopped.is_set():
            asked_after.set()
        return ""

    monkeypatch.setattr(session, "spark_session", lambda *_: SimpleNamespace(stop=stop))
    with VerifyProgress(DAY, lines.append, again_s=0.001) as progress, suppress(RuntimeError):
        stopping = partial(progress.step, "stopping Spark")
        with session.spark_on_demand("local", "verify", stopping) as start:
            start()
            progress.step("reading", how_far)
            if fails:
                raise RuntimeError("the reading failed")
    assert stopped.is_set()
    assert f"verify {DAY}: stopping Spark" in lines


def test_a_line_is_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where errors go to a file, which holds lines back."""
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(file, write_through=False))
    to_stderr("a step")
    assert file.getvalue() == b"a step\n"


def test_the_tasks_of_all_stages_are_added_up() -> None:
    stages = {
        1: SimpleNamespace(numTasks=1_000, numCompletedTasks=5),
        2: SimpleNamespace(numTasks=4, numCompletedTasks=1),
        3: None,  # gone since it was listed
    }
    active: list[int] = []
    tracker = SimpleNamespace(getActiveStageIds=lambda: active, getStageInfo=stages.__getitem__)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    assert tasks_of(spark) == ""
    active[:] = [1, 2, 3]
    assert tasks_of(spark) == "6 of 1,004 tasks"


def test_a_session_that_is_not_cleaned_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from spillway.verify import proof

    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    monkeypatch.setattr(proof, "cluster", lambda *_: pytest.fail("Kafka is not to be asked"))
    monkeypatch.setattr(session, "spark_session", lambda *_: pytest.fail("Spark is not to start"))
    made = make_day(12, seal_after=6)
    made.entries[0] = made.entries[0].model_copy(update={"query": load_query("symbol").fingerprint})
    fill_journal(open_warehouse(str(tmp_path / "w")), made.entries)
    with pytest.raises(SystemExit) as it:
        main(["--set", f"warehouse.root={tmp_path / 'w'}", "verify", "--session", DAY, "--json"])
    assert it.value.code == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert f"run 'spillway cleanup --session {DAY}', then verify again" in said.err


def test_results_that_somebody_else_wrote_are_told_of() -> None:
    """The table's results have no gap, and are more than the stream has counted."""
    totals = dict.fromkeys(TOTALS.names, 0) | {"run_time": 3}
    frames = SimpleNamespace(judged=lambda: JudgedKeys(totals, None), how_far=lambda: "", joined=())
    sealed = SimpleNamespace(start={}, end={}, results=2)
    counted = proof._Proof(lambda: None, frames, DAY, True)  # type: ignore[arg-type]
    report = counted.report([], sealed, False, 20, VerifyProgress(DAY, lambda _: None), None)  # type: ignore[arg-type]
    assert not report.complete
    assert report.details["problems"] == [
        "the table holds 3 run-time results, the journal's epochs counted 0, its sealed entry says "
        "2"
    ]
