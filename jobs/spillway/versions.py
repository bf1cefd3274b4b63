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
        from spillway.engine.state.statefiles import FORMAT as STATE
        from spillway_schemas.snapshot import FORMAT as SNAPSHOT

        lines.append(f"python {platform.python_version()}")
        lines += [f"{name} {_version(name)}" for name in PACKAGES]
        lines.append(f"formats: state {STATE}, snapshots of the journal {SNAPSHOT}")
    return lines


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not installed"
