"""The memory that a container leaves: control groups as files, of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from spillway.doctor import machine
from spillway_schemas import memory, setting_fields
from spillway_schemas.memory import MemoryLimit, memory_limits, most_memory, physical_memory
from spillway_schemas.settings import load_settings

GIB = 1 << 30
NO_LIMIT = 9223372036854771712


def limits(tmp_path: Path, line: str, files: dict[str, object]) -> list[MemoryLimit]:
    for name, content in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    (tmp_path / "process").write_text(f"12:cpu,cpuacct:/elsewhere\n{line}\n")
    return memory_limits(tmp_path / "process", tmp_path / "cgroup")


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/", {"memory.max": 4 * GIB, "memory.current": GIB}, [(4 * GIB, GIB)]),
        ("0::/", {"memory.max": "max", "memory.current": GIB}, []),
        ("0::/", {}, []),
        # A service of systemd, whose slice has less.
        (
            "0::/a/b",
            {
                "a/memory.max": 2 * GIB,
                "a/memory.current": GIB,
                "a/b/memory.max": 8 * GIB,
                "a/b/memory.current": GIB,
            },
            [(8 * GIB, GIB), (2 * GIB, GIB)],
        ),
        # Pages of files that were read are given back.
        (
            "0::/",
            {
                "memory.max": 4 * GIB,
                "memory.current": 3 * GIB,
                "memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}",
            },
            [(4 * GIB, GIB)],
        ),
        # The first version; in a container the path is the host's.
        (
            "4:memory:/docker/abc",
            {
                "memory/memory.limit_in_bytes": 3 * GIB,
                "memory/memory.usage_in_bytes": 2 * GIB,
                "memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}",
            },
            [(3 * GIB, GIB)],
        ),
        (
            "4:memory:/",
            {
                "memory/memory.limit_in_bytes": NO_LIMIT,
                "memory/memory.usage_in_bytes": GIB,
            },
            [],
        ),
    ],
)
def test_limits_of_the_group_and_of_those_above(
    tmp_path: Path, line: str, files: dict[str, object], expected: list[tuple[int, int]]
) -> None:
    assert limits(tmp_path, line, files) == expected


def test_where_there_are_no_control_groups(tmp_path: Path) -> None:
    assert memory_limits(tmp_path / "none", tmp_path) == []


def test_a_budget_goes_by_the_least_limit_and_doctor_by_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "physical_memory", lambda: 64 * GIB)
    monkeypatch.setattr(memory, "memory_limits", list)
    assert most_memory() == 64 * GIB
    # A slice that others fill leaves less than the own group, and allows more.
    found = [MemoryLimit(2 * GIB, GIB // 2), MemoryLimit(32 * GIB, 31 * GIB)]
    monkeypatch.setattr(memory, "memory_limits", lambda: found)
    assert most_memory() == 2 * GIB
    monkeypatch.setattr(setting_fields, "most_memory", most_memory)
    settings = load_settings(None, {"state.slots": 2}, environ={})[0]
    assert settings.state.budget_bytes == GIB // 4
    monkeypatch.setattr(machine, "memory_limits", lambda: found)
    assert machine._available_memory() == min(GIB, physical_memory())
    monkeypatch.setattr(machine, "memory_limits", list)
    assert machine._available_memory() > 0
