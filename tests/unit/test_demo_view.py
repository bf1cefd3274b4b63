"""What the demo says at its end: everything that it names is there."""

from __future__ import annotations

import shlex
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spillway.demo.day import LocalDay
from spillway.demo.phases import Phase, PhaseFailed, Stopped
from spillway.demo.place import Place
from spillway.demo.view import _line, what_next
from spillway_schemas.scenario import load_scenario
from spillway_schemas.settings import load_settings


@pytest.mark.parametrize(
    "made",
    [("log/",), ("service/", "airflow/logs/", "airflow/airflow.log")],
    ids=["bare", "airflow"],
)
def test_the_logs_that_are_named_are_there(made: tuple[str, ...], tmp_path: Path) -> None:
    for name in made:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()
    outcome: Any = SimpleNamespace(status=SimpleNamespace(warehouse_root="w"))
    lines = what_next(outcome, Place(tmp_path, load_settings(None, {}, {})[0]))
    assert lines[-1].endswith(
        """ -c "import polars as pl; print(pl.scan_delta('w/results').group_by('phase')"""
        """.len().collect())\""""
    )
    named = [line.split()[1] for line in lines if line.startswith("logs")]
    assert named == [str(tmp_path / name) for name in made]


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("error", [PhaseFailed("its log ends here"), Stopped()], ids=repr)
def test_what_ctrl_c_ends_was_stopped_and_has_not_failed(
    error: Exception, *, stopped: bool, tmp_path: Path
) -> None:
    """In a terminal it reaches what the phase has started as well, which fails then."""
    place = Place(tmp_path, load_settings(None, {}, {})[0])
    day = LocalDay(place, load_scenario("demo"), threading.Event(), lambda _: None)

    def work() -> None:
        with day._phase("cleanup"):
            if stopped:
                day.stop.set()
            raise error

    with pytest.raises(Stopped if stopped else type(error)):
        work()
    phase = day.phases["cleanup"]
    assert phase.state == ("stopped" if stopped else "failed")
    assert _line(phase).plain.startswith(
        "cleanup: stopped after " if stopped else "cleanup: failed"
    )


def test_a_phase_that_has_just_begun_has_no_time_yet() -> None:
    phase = Phase("cleanup", "the missing results")
    phase.state, phase.began = "running", time.monotonic()
    assert _line(phase).plain == "cleanup: the missing results"
    phase.began -= 61
    assert _line(phase).plain == "cleanup: the missing results (1 min 1 s)"


def test_a_strange_path_reaches_the_query_as_it_is(tmp_path: Path) -> None:
    root = "it's $HOME"
    outcome: Any = SimpleNamespace(status=SimpleNamespace(warehouse_root=root))
    line = what_next(outcome, Place(tmp_path, load_settings(None, {}, {})[0]))[-1]
    query = shlex.split(line)[2]
    assert f'pl.scan_delta("{root}/results")' in query
    assert "$HOME" not in line.replace(shlex.quote(query), "")
