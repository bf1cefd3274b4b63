"""The packages that tests load anew from a copy of the tree, and where they lie in it."""

from __future__ import annotations

PACKAGES = ("spillway", "spillway_schemas", "spillway_airflow")


def source_paths(tree: str) -> list[str]:
    """What a Python process needs in its path to load our packages, tests and benchmarks."""
    return [tree, *(f"{tree}/{folder}" for folder in ("jobs", "schemas", "plugins"))]
