"""Warehouses for tests of what comes after their making: each is a copy of the process's first.

To make the tables takes ten times as long.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pyarrow as pa

from spillway.engine.spill.spillfile import SPILL_COLUMNS
from spillway.tables import Warehouse


def new_warehouse(
    root: str | Path,
    results: pa.Schema,
    *,
    spill: pa.Schema = SPILL_COLUMNS,
    fsync: bool = False,
) -> Warehouse:
    """The warehouse at `root`; made when it is not there."""
    if not (Path(root) / "journal").exists():
        shutil.copytree(_first(results, spill), root, dirs_exist_ok=True)
    return Warehouse(str(root), results, spill=spill, fsync=fsync)


@cache
def _first(results: pa.Schema, spill: pa.Schema) -> Path:
    place = Path(tempfile.mkdtemp(prefix="spillway-new-warehouse-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    Warehouse(str(place / "w"), results, spill=spill, fsync=False)
    return place / "w"
