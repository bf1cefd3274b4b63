"""The files of `docker/` as tests look at them: parsed, and with sizes as numbers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from yaml import CSafeLoader, load, load_all

from tests.missing import without

ROOT = Path(__file__).resolve().parents[1]
DOCKER = ROOT / "docker"
DOCKERFILE = DOCKER / "Dockerfile"
COMPOSE = DOCKER / "compose.yaml"
CHART = DOCKER / "helm"
USER = "10001"

HEADROOM = 1.25
"""Memory for state by its budgets: a merge keeps old and new files for a moment."""

_UNITS = {"": 1, "k": 10, "m": 20, "g": 30}


def size(text: str) -> int:
    """Bytes of `640m`, `3g` (Docker, JVM) and `2560Mi`, `2Gi` (Kubernetes)."""
    match = re.fullmatch(r"(\d+)([kmg]?)i?b?", str(text).lower())
    assert match, f"{text!r} is no size"
    unit = _UNITS[match[2]]
    return int(match[1]) * (unit if not match[2] else 1 << unit)


def compose() -> dict[str, Any]:
    """compose.yaml, its merges done."""
    found: dict[str, Any] = load(COMPOSE.read_text(), CSafeLoader)
    return found


def helm(*arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run Helm, which is not asked for a cluster."""
    if shutil.which("helm") is None:
        without("helm", "see how .ci/run gets it")
    return subprocess.run(
        ["helm", *arguments], input=given, capture_output=True, text=True, check=False
    )


def rendered(
    values: Mapping[str, Any] | None = None, release: str = "spillway", namespace: str = "spillway"
) -> dict[str, dict[str, Any]]:
    """The objects that Helm makes of the chart, by their kind. `values`: instead of the chart's.

    Raises ValueError with what Helm says.
    """
    where = ("--namespace", namespace, "--values", "-")
    done = helm("template", release, CHART, *where, given=json.dumps(values or {}))
    if done.returncode != 0:
        raise ValueError(done.stderr)
    found = [each for each in load_all(done.stdout, CSafeLoader) if each]
    kinds = {each["kind"]: each for each in found}
    assert len(kinds) == len(found), "two objects of one kind"
    return kinds


def spark_defaults(folder: Path) -> dict[str, str]:
    """Spark's options with a new secret, as `make-secrets` writes them into a folder."""
    subprocess.run([DOCKER / "make-secrets", folder], check=True, capture_output=True)
    lines = (folder / "spark_defaults").read_text().splitlines()
    return dict(line.split() for line in lines)


def version() -> str:
    """The project's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


@cache
def airflow_options() -> dict[tuple[str, str], dict[str, Any]]:
    """Airflow's own options by section and name, read without importing Airflow."""
    spec = find_spec("airflow")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    file = Path(next(iter(spec.submodule_search_locations))) / "config_templates" / "config.yml"
    sections = load(file.read_text(), CSafeLoader)
    return {
        (section, name): option
        for section, each in sections.items()
        for name, option in each["options"].items()
    }
