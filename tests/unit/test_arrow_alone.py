"""No process of spillway imports pandas only because PyArrow looks for it.

Kills: an array that a module makes when it is imported; PyArrow that is not told before its first
array, in a command or in a worker process; a pandas that nobody finds any more.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = "'pandas' in sys.modules"


def loaded(lines: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{lines}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["spillway.cleanup.job", "spillway.verify.single", "spillway.commands.status"]
)
def test_no_module_makes_an_array(module: str) -> None:
    assert loaded(f"import {module}\nprint({LOADED})") == "False"


def test_arrays_are_made_without_pandas_which_others_find() -> None:
    lines = """
import numpy as np, pyarrow as pa
from spillway.arrow_alone import arrow_alone
arrow_alone()
pa.array([1]), pa.array(np.arange(2)), pa.table({"a": [1]}).filter(pa.array([True]))
found = ["pandas" in sys.modules]
frame = pa.table({"a": [1, 2]}).to_pandas()
import pandas as pd
found += [len(frame), pa.Table.from_pandas(frame).num_rows, pa.array(pd.Series([3]))[0].as_py()]
arrow_alone()
print(found, len([each for each in sys.meta_path if "NoPandas" in str(each)]))
"""
    assert loaded(lines) == "[False, 2, 2, 3] 0"


def test_a_command_and_a_worker_process_are_told(tmp_path) -> None:
    lines = f"""
import pyarrow as pa
from types import SimpleNamespace
from spillway.commands import given
from spillway.tables import NoWarehouse
from spillway_schemas.settings import WarehouseSettings
try:
    given.warehouse(SimpleNamespace(warehouse=WarehouseSettings(root={str(tmp_path)!r})))
except NoWarehouse:
    pass
pa.array([1])
print({LOADED})
"""
    assert loaded(lines) == "False"
    lines = """
from spillway.worker_processes import WorkerProcesses
from tests.unit.test_arrow_alone import has_pandas
pool = WorkerProcesses(1, "pyarrow", int)
print(pool.submit(has_pandas).result())
pool.shutdown()
"""
    assert loaded(lines) == "False"


def has_pandas() -> bool:
    """In a worker process, after it has made an array."""
    import pyarrow as pa

    pa.array([1])
    return "pandas" in sys.modules
