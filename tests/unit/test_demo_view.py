"""What the demo says at its end: everything that it names is there."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.demo.place import Place
from jobs.demo.view import what_next
from schemas.settings import load_settings


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


def test_a_strange_path_reaches_the_query_as_it_is(tmp_path: Path) -> None:
    root = "it's $HOME"
    outcome: Any = SimpleNamespace(status=SimpleNamespace(warehouse_root=root))
    line = what_next(outcome, Place(tmp_path, load_settings(None, {}, {})[0]))[-1]
    query = shlex.split(line)[2]
    assert f'pl.scan_delta("{root}/results")' in query
    assert "$HOME" not in line.replace(shlex.quote(query), "")
