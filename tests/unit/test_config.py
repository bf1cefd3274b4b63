"""`spillway config show` at the width of a terminal: whole words, every value and its origin."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from spillway.report.settings import settings_table
from spillway_schemas.settings import catalogue, load_settings, values

LONG = "/home/somebody/projects/with/a/long/path/in/it/var/warehouse"
FLAGS = {"warehouse.root": LONG, "state.root": "/dev/shm/x"}
ENVIRON = {"SPILLWAY_MAINTENANCE__KEEP_STATISTICS_DAYS": "9", "SPILLWAY_STATE__SLOTS": "4"}


def at(width: int, flags: dict[str, object]) -> str:
    settings, origins = load_settings(None, flags, ENVIRON)
    out = Console(file=io.StringIO(), width=width)
    picture = settings_table(catalogue(), values(settings), origins, out)
    out.print(picture, highlight=False, soft_wrap=True)
    text: str = out.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text, "something is cut"
    return text


@pytest.mark.parametrize("width", [72, 80, 100])
def test_nothing_is_cut_and_nothing_is_lost(width: int) -> None:
    text = at(width, dict(FLAGS))
    lines = text.splitlines()
    assert max(map(len, lines)) <= max(width, len(LONG) + len("    ") + len(" (path)"))
    words = " ".join(text.split())
    for setting in catalogue():
        start = next(i for i, line in enumerate(lines) if line.split()[:1] == [setting.name])
        assert lines[start].split()[-1] in ("default", "environment", "flag"), setting.name
    for told in (
        f"warehouse.root flag {LONG} (path) from --set warehouse.root",
        "state.root /dev/shm/x (path) flag from --set state.root",
        "environment from SPILLWAY_MAINTENANCE__KEEP_STATISTICS_DAYS",
        "state.slots 4 (slots) environment from SPILLWAY_STATE__SLOTS",
    ):
        assert told in words


def test_a_wide_terminal_has_a_table() -> None:
    text = at(200, dict(FLAGS))
    [head, *rows] = [line.split() for line in text.splitlines()]
    assert head == ["setting", "value", "unit", "origin"]
    assert ["state.root", "/dev/shm/x", "path", "--set", "state.root"] in rows
    assert len(rows) == len(catalogue())


def test_an_escape_code_in_a_value_is_shown_as_text() -> None:
    assert "\x1b" not in at(80, {"warehouse.root": "/tmp/\x1b[31mred\x07"})
