"""What `spillway --version` prints."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "pyspark",
    "delta-spark",
    "deltalake",
    "pyarrow",
    "numpy",
    "pydantic",
    "kafka-python",
    "apache-airflow",
)


def version_lines(verbose: bool) -> list[str]:
    """Lines: the version; with `verbose` also Python's, the packages', and those of our formats."""
    lines = [f"spillway {_version('spillway')}"]
    if verbose:
        lines.append(f"python {platform.python_version()}")
        lines += [f"{name} {_version(name)}" for name in PACKAGES]
        lines += [f"format of {what}: {number}" for what, number in formats().items()]
    return lines


def formats() -> dict[str, int]:
    """The number of each format that has one, by what is kept in it.

    The tables have none: their columns are compared, and their JSON is validated.
    """
    from spillway.engine.state.statefiles import FORMAT as STATE
    from spillway.readmodel.cache import VERSION as CACHE
    from spillway.readmodel.model import FORMAT as READ_MODEL
    from spillway_schemas.snapshot import FORMAT as SNAPSHOT

    return {
        "state": STATE,
        "journal snapshots": SNAPSHOT,
        "read models": READ_MODEL,
        "read caches": CACHE,
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not installed"
