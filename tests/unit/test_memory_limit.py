"""The memory that a container leaves: control groups as files, of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from spillway.doctor import machine
from spillway_schemas import setting_fields
from spillway_schemas.memory import MemoryLimit, memory_limit, physical_memory
from spillway_schemas.settings import load_settings

GIB = 1 << 30
NO_LIMIT = 9223372036854771712


def limit(tmp_path: Path, line: str, files: dict[str, object]) -> MemoryLimit | None:
    for name, content in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    (tmp_path / "process").write_text(f"12:cpu,cpuacct:/elsewhere\n{line}\n")
    return memory_limit(tmp_path / "process", tmp_path / "cgroup")


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/", {"memory.max": 4 * GIB, "memory.current": GIB}, (4 * GIB, GIB)),
        ("0::/", {"memory.max": "max", "memory.current": GIB}, None),
        ("0::/", {}, None),
        # A service of systemd, whose slice has less.
        (
            "0::/a/b",
            {
                "a/memory.max": 2 * GIB,
                "a/memory.current": GIB,
                "a/b/memory.max": 8 * GIB,
                "a/b/memory.current": GIB,
            },
            (2 * GIB, GIB),
        ),
        # What counts is what is left.
        (
            "0::/a/b",
            {
                "a/memory.max": 8 * GIB,
                "a/memory.current": 7 * GIB,
                "a/b/memory.max": 4 * GIB,
                "a/b/memory.current": GIB,
            },
            (8 * GIB, 7 * GIB),
        ),
        # Pages of files that were read are given back.
        (
            "0::/",
            {
                "memory.max": 4 * GIB,
                "memory.current": 3 * GIB,
                "memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}",
            },
            (4 * GIB, GIB),
        ),
        # The first version; in a container the path is the host's.
        (
            "4:memory:/docker/abc",
            {
                "memory/memory.limit_in_bytes": 3 * GIB,
                "memory/memory.usage_in_bytes": 2 * GIB,
                "memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}",
            },
            (3 * GIB, GIB),
        ),
        (
            "4:memory:/",
            {
                "memory/memory.limit_in_bytes": NO_LIMIT,
                "memory/memory.usage_in_bytes": GIB,
            },
            None,
        ),
    ],
)
def test_the_limit_that_leaves_least(
    tmp_path: Path, line: str, files: dict[str, object], expected: tuple[int, int] | None
) -> None:
    assert limit(tmp_path, line, files) == expected


def test_where_there_are_no_control_groups(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "none", tmp_path) is None


def test_a_budget_fits_into_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_fields, "physical_memory", lambda: 64 * GIB)
    for found, budget in ((None, GIB), (MemoryLimit(2 * GIB, 0), GIB // 4)):
        monkeypatch.setattr(setting_fields, "memory_limit", lambda found=found: found)
        settings = load_settings(None, {"state.slots": 2}, environ={})[0]
        assert settings.state.budget_bytes == budget


def test_doctor_counts_what_the_container_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_limit", lambda: MemoryLimit(GIB, GIB // 2))
    assert machine._available_memory() == min(GIB // 2, physical_memory())
    monkeypatch.setattr(machine, "memory_limit", lambda: None)
    assert machine._available_memory() > 0
