"""Imports go one way: schemas <- engine, policy, protocol, decode <- edges <- entry points.

What a folder may import follows from its name; this test is the list. A folder that is not
listed is an edge: it may import every layer below, but no entry point.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

STANDARD = sys.stdlib_module_names

PURE = {"numpy", "pyarrow", "pydantic", "pydantic_core", "annotated_types"}
"""What the core may use besides the standard library."""

CORE: dict[str, tuple[set[str], set[str]]] = {
    # folder or module: (parts of ours that it may import besides itself, other packages)
    "schemas": (set(), PURE | {"pydantic_settings", "polars"}),
    "jobs.policy": ({"schemas"}, PURE),
    "jobs.protocol": ({"schemas", "jobs.policy"}, PURE),
    "jobs.clock": (set(), set()),
    "jobs.plain": (set(), set()),
    "jobs.private": (set(), set()),
    "jobs.storage": ({"jobs.private"}, PURE),
    "jobs.engine": ({"schemas", "jobs.policy", "jobs.storage"}, PURE),
    "jobs.decode": ({"schemas", "jobs.engine"}, PURE | {"polars"}),
    "jobs.places": (set(), set()),
    "jobs.jars": ({"jobs.places"}, set()),
    "jobs.kafka": ({"schemas", "jobs.jars", "jobs.places", "jobs.private"}, {"kafka", "psutil"}),
    "jobs.processes": (set(), set()),
    "jobs.readmodel": (
        {"schemas", "jobs.policy", "jobs.protocol", "jobs.tables", "jobs.places", "jobs.private"},
        PURE,
    ),
    "jobs.tables": (
        {"schemas", "jobs.engine", "jobs.private", "jobs.protocol", "jobs.storage"},
        PURE | {"deltalake"},
    ),
    "jobs.produce": (
        {"schemas", "jobs.engine", "jobs.kafka"},
        PURE | {"kafka", "rich"},
    ),
}

ENTRY_POINTS = {"jobs.cli"}

ONLY_IN: dict[str, set[str]] = {
    # Who may talk to the outside: a second place for one of these is a second way to be wrong.
    "deltalake": {"jobs.tables"},
    "kafka": {"jobs.kafka", "jobs.produce", "jobs.mended", "jobs.verify"},
    "pyspark": {"jobs.stream", "jobs.cleanup", "jobs.verify"},
    "delta": {"jobs.stream", "jobs.cleanup", "jobs.verify"},
    "prometheus_client": {"jobs.metrics"},
}

NOT_FOR_THE_PROOF = {"join", "probe", "step", "cleanup", "arrangement", "runs", "merging"}
"""Modules of the engine that `verify` must do without: a proof by the same code proves nothing."""


def modules() -> Iterator[tuple[str, Path]]:
    for top in ("schemas", "jobs"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, wherever in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            if node.module in ("jobs", "schemas"):
                for name in node.names:
                    yield f"{node.module}.{name.name}", node.lineno
            else:
                yield node.module, node.lineno


def part_of(module: str) -> str:
    """The folder (or top-level module) of ours that a module belongs to: `jobs.engine`."""
    names = module.split(".")
    return "schemas" if names[0] == "schemas" else ".".join(names[:2])


def ours(module: str) -> bool:
    return module.split(".")[0] in ("jobs", "schemas")


FILES = [pytest.param(name, path, id=name) for name, path in modules()]


@pytest.mark.parametrize(("name", "path"), FILES)
def test_imports_go_one_way(name, path):
    part = part_of(name)
    for module, line in imported(path):
        where = f"{path.relative_to(ROOT)}:{line} imports {module}"
        if ours(module):
            target = part_of(module)
            assert target not in ENTRY_POINTS or part in ENTRY_POINTS, where
            if part in CORE and target != part:
                assert target in CORE[part][0], where
            if part == "jobs.verify" and module.startswith("jobs.engine."):
                assert module.split(".")[2] not in NOT_FOR_THE_PROOF, where
        else:
            package = module.split(".")[0]
            if part in CORE and package not in STANDARD:
                assert package in CORE[part][1], where
            if package in ONLY_IN:
                assert part in ONLY_IN[package], where


def test_folders_do_not_import_in_a_circle():
    graph: dict[str, set[str]] = {}
    for name, path in modules():
        targets = {part_of(m) for m, _ in imported(path) if ours(m)}
        graph.setdefault(part_of(name), set()).update(targets - {part_of(name)})
    done: set[str] = set()

    def visit(part: str, above: tuple[str, ...]) -> None:
        assert part not in above, " -> ".join((*above, part))
        if part not in done:
            for target in sorted(graph.get(part, ())):
                visit(target, (*above, part))
            done.add(part)

    for part in sorted(graph):
        visit(part, ())


@pytest.mark.parametrize("folder", ["plugins", "dags"])
def test_airflow_parses_without_spark(folder):
    for path in sorted((ROOT / folder).rglob("*.py")):
        top_level = ast.parse(path.read_text()).body
        for node in top_level:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = (
                    [a.name for a in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                )
                heavy = {"pyspark", "delta", "deltalake", "pandas", "kafka"}
                assert not {n.split(".")[0] for n in names} & heavy, f"{path}:{node.lineno}"


def test_no_file_has_a_name_that_says_nothing():
    vague = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
    assert not [name for name, _ in modules() if name.split(".")[-1] in vague]
