"""An outer join from its query to those who read its results."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from rich.table import Table

from spillway.cleanup.job import run_cleanup
from spillway.cleanup.progress import outcome_sentence
from spillway.engine.join.results import result_schema
from spillway.engine.spill.spillfile import spill_schema
from spillway.engine.spill.unmatched import unmatched_rows
from spillway.estimate.reading import SessionEstimate
from spillway.estimate.scaling import Estimate
from spillway.estimate.shown import as_json, as_tables
from spillway.following.position import Position, next_step, taken
from spillway.following.rows import Follower, HistoryChanged, newest_of
from spillway.relay.encoding import records
from spillway.report.query_tree import as_dict, as_text
from spillway.stream.genesis import genesis_by
from spillway.tables import Warehouse
from spillway.verify.shown import verdict_table
from spillway_schemas.query import Query, query_of
from spillway_schemas.settings import load_settings
from spillway_schemas.tomlfile import parse_toml
from tests.integration.spilled_day import (
    DAY,
    OUTER,
    SPEC,
    Here,
    brute_force,
    make_day,
    random_rows,
)
from tests.unit.test_genesis import Kafka

IDENTITY = [f"{each.name}_{part}" for each in SPEC.inputs for part in ("partition", "offset")]


def query(more: str = "") -> Query:
    text = '[streams.a]\nfields = { k = "int", x = "int" }\n'
    text += '[streams.b]\nfields = { k = "int", x = "int" }\nfilter = "x > 0"\n'
    text += f'[join]\ninputs = ["a", "b"]\non = ["k"]\n{more}'
    return query_of(parse_toml(text, Path("q.toml")))


@pytest.mark.parametrize(("more", "outer"), [("", False), ('optional = ["b"]', True)])
def test_the_journal_knows_whether_results_may_lack_rows(
    tmp_path: Path, more: str, outer: bool
) -> None:
    settings = load_settings(None, {"warehouse.root": str(tmp_path)}, environ={})[0]
    kafka: Any = Kafka()
    made = genesis_by(settings, query(more), kafka, session=DAY, now_ms=0)
    assert made.outer is outer


def test_unmatched_results_of_one_hash_alone_are_all_of_it() -> None:
    """A piece of a cleanup may be a single hash, of two keys here."""
    join = OUTER.root
    hashes = np.array([7, 7, 9], np.uint64)
    inputs = []
    for at, each in enumerate(join.inputs):
        schema = join.row_schema(at)
        rows = [] if each.optional else [{"symbol": name} for name in ("a", "b", "c")]
        plain = {f.name: 1 if pa.types.is_integer(f.type) else None for f in schema}
        table = pa.Table.from_pylist([plain | row for row in rows], schema)
        inputs.append((hashes[: len(rows)], table))
    found = unmatched_rows(join, inputs)
    assert found is not None

    def symbols(lo: int, hi: int) -> list[str]:
        parts = [each.table["symbol"].to_pylist() for each in found.between(lo, hi, 1 << 20)]
        return sorted(name for part in parts for name in part)

    assert symbols(0, 7) == []
    assert symbols(7, 8) == ["a", "b"]
    assert symbols(8, 10) == ["c"]
    assert symbols(0, 1 << 64) == ["a", "b", "c"]


def test_an_optional_stream_is_drawn_as_one() -> None:
    console = Console(width=100)
    with console.capture() as drawn:
        console.print(as_text(query('optional = ["b"]')))
    assert "b where x > 0, optional" in drawn.get()
    [join] = as_dict(query('optional = ["b"]'))["joins"]
    assert join["optional"] == ["b"]
    assert as_dict(query())["joins"][0]["optional"] == []


def test_an_estimate_says_what_is_not_in_it() -> None:
    guess = SessionEstimate((), Estimate(5, 4, 6), ("k",), (), 0, None, None, True, ("a", "b"))
    console = Console(width=200)
    with console.capture() as told:
        console.print(as_tables(guess))
    assert "Results that lack a row of a or b come on top, after the close" in told.get()
    assert as_json(guess)["optional"] == ["a", "b"]
    with console.capture() as told:
        console.print(as_tables(replace(guess, optional=())))
    assert "lack" not in told.get()


@pytest.mark.server
def test_whoever_follows_results_has_each_once_whatever_it_lacks(tmp_path: Path) -> None:
    day = make_day(str(tmp_path), random_rows(5, 150, 60, 3), depth=3, spec=OUTER)
    cleaned = run_cleanup(Here, day.warehouse(), OUTER, DAY)
    assert "missing and unmatched results added" in outcome_sentence(cleaned)
    assert "unmatched" not in outcome_sentence(replace(cleaned, outer=False))
    follower, position = Follower(day.warehouse(), IDENTITY), Position()
    found: Counter[Any] = Counter()
    lacking, steps = 0, 0
    while (step := next_step(position, follower.look(), most_rows=20)) is not None:
        newest, steps = position.newest, steps + 1
        for rows in follower.read(step):
            newest = newest_of(rows, newest)
            _, values = records(rows, ["symbol"])
            for row in map(json.loads, values.to_pylist()):
                offsets = [row[f"{each.name}_offset"] for each in SPEC.inputs]
                found[(row["phase"], row["symbol"], *offsets)] += 1
                lacking += None in offsets
        position = taken(position, step, newest)
    assert found == brute_force(day.rows, OUTER)
    assert lacking
    assert steps > 3


def test_who_follows_results_notices_rows_of_epochs_that_had_none(tmp_path: Path) -> None:
    follower = Follower(make_day(str(tmp_path), random_rows(5, 90, 9, 3)).warehouse(), IDENTITY)
    seen = follower.look()
    step = next_step(Position(), seen, most_rows=10**6)
    assert step is not None
    rows = pa.concat_tables(follower.read(step)).sort_by("epoch")
    first, last = newest_of(rows.slice(0, 1), None), newest_of(rows, None)
    assert first is not None
    assert last is not None
    assert first.epoch < last.epoch
    follower.check(Position(epoch=first.epoch, newest=first), seen)
    follower.check(Position(epoch=last.epoch, newest=last), seen)
    with pytest.raises(HistoryChanged, match=f"from epoch {first.epoch} on it has other rows"):
        follower.check(Position(epoch=last.epoch, newest=first), seen)


def test_a_table_of_inner_results_takes_those_that_lack_rows_and_keeps_them(
    tmp_path: Path,
) -> None:
    """As it is where the query changes, and changes back."""
    make_day(str(tmp_path), random_rows(5, 60, 20, 2), depth=2)
    inner, outer = ((result_schema(spec), spill_schema(spec)) for spec in (SPEC, OUTER))
    for results, spill in (outer, inner):
        Warehouse(str(tmp_path), results, spill=spill, fsync=False).widen_columns()
        found = Warehouse(str(tmp_path), fsync=False).table("results").definition.schema
        assert found is not None
        assert {field.name: field.nullable for field in found} == {
            field.name: field.nullable for field in outer[0]
        }
    assert found.field("review_offset").nullable
    assert not found.field("volume_offset").nullable


def test_a_difference_names_the_stream_that_a_result_lacks() -> None:
    example = {
        "key": {"k": 1},
        "coordinates": {
            "a": {"partition": 0, "offset": 7},
            "b": {"partition": None, "offset": None},
        },
        "expected": 1,
        "found": 0,
        "phase": None,
    }
    details = {"keys": 1, "quarantined": 0, "seconds": 1.0, "problems": [], "unmatched": 1}
    report = {
        "session": DAY,
        "complete": False,
        **dict.fromkeys(("expected", "run_time", "cleanup", "missing", "doubled"), 1),
        "details": {**details, "differences": [example]},
    }
    said = told(verdict_table(report))
    assert "a 0:7, no b: found 0, should be 1" in said
    assert "unmatched, of those that there should be" in said


def told(table: Table) -> str:
    console = Console(width=120)
    with console.capture() as caught:
        console.print(table)
    return caught.get()
