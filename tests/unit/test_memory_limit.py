"""The memory that a container leaves: control groups as files, of both versions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from spillway.doctor import machine
from spillway_schemas import memory, setting_fields
from spillway_schemas.memory import (
    MemoryLimit,
    killed_for_memory,
    memory_limits,
    most_memory,
    physical_memory,
)
from spillway_schemas.settings import load_settings
from tests.cgroups import control_group

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
                "memory.stat": f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB}",
            },
            [(4 * GIB, GIB)],
        ),
        # The first version; in a container the path is the host's.
        (
            "4:memory:/docker/abc",
            {
                "memory/memory.limit_in_bytes": 3 * GIB,
                "memory/memory.usage_in_bytes": 2 * GIB,
                "memory/memory.stat": (
                    f"inactive_file 7\nactive_file 7\n"
                    f"total_inactive_file {GIB // 2}\ntotal_active_file {GIB // 2}"
                ),
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


@pytest.mark.parametrize(
    ("line", "files", "killed"),
    [
        ("0::/", {"memory.events": "low 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0"}, 2),
        ("0::/", {"memory.events": "low 0"}, 0),
        ("0::/", {}, 0),
        # Those above have others' beside the group's own.
        ("0::/a/b", {"memory.events": "oom_kill 9", "a/b/memory.events": "oom_kill 1"}, 1),
        # In a container: the path is the host's.
        (
            "4:memory:/docker/abc",
            {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4"},
            4,
        ),
        ("4:memory:/", {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0"}, 0),
        ("4:cpu:/", {"memory.events": "oom_kill 9"}, 0),
    ],
)
def test_what_the_kernel_has_killed_is_counted(
    tmp_path: Path, line: str, files: dict[str, object], killed: int
) -> None:
    limits(tmp_path, line, files)
    assert killed_for_memory(tmp_path / "process", tmp_path / "cgroup") == killed


@pytest.mark.server
def test_a_limit_that_is_really_reached_is_told(tmp_path: Path) -> None:
    """A process of a group is killed by the kernel. `doctor` warns of that, and refuses budgets
    that do not fit, state on tmpfs included."""
    with control_group(192 << 20) as group:
        told = group.run(
            "import sys\n"
            f"sys.path[:0] = {sys.path!r}\n"
            "from spillway.doctor import machine\n"
            "from spillway.stream.troubles import MemoryWatch\n"
            "from spillway_schemas.settings import load_settings\n"
            "watch = MemoryWatch()\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    held = [bytearray(1 << 20) for _ in range(1024)]\n"
            "    os._exit(0)\n"
            "print('ended by', os.WTERMSIG(os.waitpid(child, 0)[1]))\n"
            "print(watch.told())\n"
            "print('again', repr(watch.told()))\n"
            f"given = {{'state.root': {str(tmp_path)!r}, 'state.budget_bytes': '1GiB'}}\n"
            "settings = load_settings(None, given | {'state.slots': 2}, environ={})[0]\n"
            "machine._is_memory = lambda _: True\n"
            "for check in machine.memory(settings, settings.state.slots):\n"
            "    print(check.status, check.what)\n"
        )
    killed, said, again, warned, refused = told.splitlines()
    assert killed == "ended by 9"
    assert said.startswith("memory ran out: the kernel has killed a process 1 time (all of this")
    assert "may have 192 MiB" in said
    assert again == "again ''"
    assert warned.startswith("warn the kernel has killed a process here 1 time because memory")
    assert refused.startswith("fail 2 slots x 1.00 GiB = 2.00 GiB, but only ")


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


def test_state_of_another_group_gives_no_more_memory_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kills: 3 GiB free of a limit of 4, and 2 GiB that a stream elsewhere has taken, are 5."""
    found = [MemoryLimit(4 * GIB, GIB)]
    monkeypatch.setattr(machine, "memory_limits", lambda: found)
    monkeypatch.setattr(machine, "most_memory", lambda: 4 * GIB)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=9**12))
    assert machine._available_memory(GIB // 2) == 3 * GIB + GIB // 2
    assert machine._available_memory(2 * GIB) == 4 * GIB
