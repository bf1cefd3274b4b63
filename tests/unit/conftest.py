"""What several tests of the Airflow plugin share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """`[spillway]` of Airflow's configuration; of another section `section.name`."""
    # Only their tests pay for Airflow.
    from spillway_airflow import (
        alerts,
        command,
        connections,
        dag_docs,
        launchers,
        links,
        sections,
    )
    from spillway_airflow.operators import base

    found: dict[str, str] = {}

    def setting(name: str, section: str = "spillway") -> str | None:
        return found.get(name if section == "spillway" else f"{section}.{name}")

    for module in (alerts, base, command, connections, dag_docs, launchers, links, sections):
        monkeypatch.setattr(module, "setting", setting)
    return found


@pytest.fixture
def fake(tmp_path: Path, settings: dict[str, str]) -> Callable[[str], Path]:
    """A program in spillway's place, in Python."""

    def make(body: str) -> Path:
        path = tmp_path / "fake"
        path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{body}\n")
        path.chmod(0o755)
        settings["command"] = str(path)
        return path

    return make
