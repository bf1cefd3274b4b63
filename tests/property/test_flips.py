"""One bit of one file is wrong: a clear error, or the right results; never other ones.

Every kind of file of a day's warehouse, with bits at random. What is asked of it is the cleanup of
the day, which reads all of them but statistics; the results are then compared whole. Files of a
slot's state: `tests/unit/test_state_digests.py`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from spillway.cleanup.job import run_cleanup
from spillway.cleanup.plan import CleanupRefused
from spillway.engine.join.results import file_schema
from spillway.engine.spill.spillfile import SpillDamaged
from spillway.readmodel.kept import begun, followed, keep
from spillway.tables import Warehouse
from spillway.tables.errors import WarehouseError
from spillway.verify.tasks import ResultsDamaged, read_files
from tests.fresh import fresh_seed
from tests.integration.spilled_day import (
    DAY,
    SPEC,
    Here,
    brute_force,
    make_day,
    random_rows,
    results_of,
)

CLEAR = (WarehouseError, CleanupRefused, SpillDamaged)
"""Errors that say which file it is, and what to do."""
KINDS = (
    "commands/_delta_log",
    "journal",
    "journal/_delta_log",
    "quarantine/_delta_log",
    "results",
    "results/_delta_log",
    "sessions/_delta_log",
    "spill",
    "spill/_delta_log",
    "statistics/_delta_log",
)
CHECKPOINTS = tuple(f"{table}/checkpoint" for table in ("journal", "results", "sessions", "spill"))
"""Of tables' logs. Each is written for its own test alone: what comes before is not read then."""
SNAPSHOTS, READ_MODELS = "snapshots", "readmodels"


def kind_of(path: Path) -> str:
    """A file's kind, by its path below the warehouse."""
    if "checkpoint" in path.name:
        return f"{path.parts[0]}/checkpoint"
    return f"{path.parts[0]}/_delta_log" if "_delta_log" in path.parts else path.parts[0]


def write_more(warehouse: Warehouse, kind: str) -> None:
    """What so short a day has not got: a checkpoint, a snapshot of the journal, a read model."""
    if kind in CHECKPOINTS:
        assert warehouse.table(kind.partition("/")[0]).checkpoint(every=1)
    elif kind == SNAPSHOTS:
        state = warehouse.journal.state()
        assert state is not None
        warehouse.journal.keep(state)
    elif kind == READ_MODELS:
        keep(warehouse)


@pytest.mark.parametrize("kind", [*KINDS, *CHECKPOINTS, SNAPSHOTS, READ_MODELS])
@pytest.mark.parametrize("flips", [2, pytest.param(60, marks=pytest.mark.soak)])
def test_a_bit_that_is_wrong(kind: str, flips: int) -> None:
    """Not as often, and at the same places each time, in the fast lane."""
    seed = 1 if flips < 60 else fresh_seed()
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        root, copy = Path(place, "w"), Path(place, "copy")
        day = make_day(str(root), random_rows(3, 200, 30, 3), depth=2)
        expected = brute_force(day.rows)
        write_more(day.warehouse(), kind)
        model = shown(day.warehouse())
        files = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
        mine = sorted(path for path in files if kind_of(path) == kind)
        assert {kind_of(path) for path in files if len(path.parts) > 1} == {*KINDS, kind}
        told: list[str] = []
        noticed = 0
        for _ in range(flips):
            shutil.copytree(root, copy)
            name = rng.choice(mine)
            content = bytearray((copy / name).read_bytes())
            at, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
            content[at] ^= bit
            (copy / name).write_bytes(content)
            try:
                warehouse = Warehouse(str(copy), fsync=False)
                run_cleanup(Here, warehouse, SPEC, DAY)
                if is_noticed_by_the_proof(warehouse) or (found := read(warehouse)) is None:
                    noticed += 1
                else:
                    assert found == expected, (seed, name, at, bit)
                if kind == READ_MODELS:
                    assert shown(warehouse) == model, (seed, name, at, bit)
            except CLEAR as error:
                told.append(str(error))
                where = (seed, name, at, bit, type(error), told[-1])
                assert str(copy) in told[-1] or DAY in told[-1], where
            shutil.rmtree(copy)
        if not kind.startswith("results"):  # cleanup writes them, and does not read them
            assert not noticed
        if kind in (SNAPSHOTS, READ_MODELS):  # the entries say the same
            assert not told
        else:
            assert flips < 60 or noticed + len(told) > 5


def shown(warehouse: Warehouse) -> object:
    """What people are shown of the journal: by a read model that is kept, or without."""
    model = followed(*begun(warehouse))
    assert model is not None
    return model.kept()


def read(warehouse: Warehouse) -> Counter[object] | None:
    """The results as somebody else's reader gives them; None: it gives an error."""
    try:
        return results_of(warehouse)
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def is_noticed_by_the_proof(warehouse: Warehouse) -> bool:
    """Whether the results cannot be read as `verify` does, which asks each page's checksum, or
    there are fewer of them than the log says."""
    paths = [file.path for file in warehouse.files("results")]
    try:
        found = read_files(warehouse.folder("results"), paths, file_schema(SPEC).names)
        rows = sum(batch.num_rows for batch in found)
    except ResultsDamaged:
        return True
    return rows != sum(file.rows for file in warehouse.files("results"))
