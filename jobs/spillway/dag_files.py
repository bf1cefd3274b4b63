"""The DAG file that comes with the package, and a copy of it in a folder of Airflow's."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from spillway_schemas.exits import FAILED, USAGE


class DagFileError(Exception):
    """The DAG file cannot be written there, and why."""

    exit_code = FAILED


class NoDagsFolder(DagFileError):
    """The folder that was named is none."""

    exit_code = USAGE


def dags_folder() -> Path:
    """Where the shipped DAG files lie. Airflow is not imported."""
    spec = find_spec("spillway_airflow")
    assert spec is not None, "it is part of the same distribution"
    assert spec.origin is not None
    return Path(spec.origin).parent / "dags"


def write_dag_files(folder: Path) -> list[Path]:
    """Copy them into a folder that exists; the files written, or left as they are when equal.

    Raises `NoDagsFolder` when the folder is missing, and `DagFileError` when it holds a file of
    that name which is another one: it may have been changed on purpose.
    """
    if not folder.is_dir():
        raise NoDagsFolder(f"there is no folder {folder}: name Airflow's dags folder")
    written = []
    for shipped in sorted(dags_folder().glob("*.py")):
        target, text = folder / f"spillway_{shipped.name}", shipped.read_text()
        if target.exists() and target.read_text() != text:
            raise DagFileError(
                f"{target} differs from the one of this version: move it away, and compare them"
            )
        target.write_text(text)
        written.append(target)
    return written
