"""The pages as tests read them: fenced blocks, commands in blocks and in running text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

SHELL = ("", "console")
"""Languages of blocks that hold commands and what they print."""
COMMAND = re.compile(
    r"(?:(?:\.venv/bin/)?(?:spillway|python -m)|make|docker/make-secrets|docker|kubectl|helm)"
    r"(?: |$)"
)
"""How a line begins that is typed."""


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    language: str
    lines: tuple[str, ...]
    marker: str
    """What the comment in front of it says: the name of who makes its output; '' without one."""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        return [line.removeprefix("$ ") for line in self.lines if is_command(line)]

    @property
    def output(self) -> list[str]:
        return [line for line in self.lines if line.strip() and not is_command(line)]


def is_command(line: str) -> bool:
    return line.startswith("$ ") or COMMAND.match(line) is not None


@cache
def blocks() -> tuple[Block, ...]:
    """All fenced blocks of all pages."""
    return tuple(block for page in PAGES for block in _blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        fence = re.fullmatch(r"( *)```(\S*).*", lines[number])
        if fence is None:
            number += 1
            continue
        end = next(n for n in range(number + 1, len(lines)) if lines[n] == f"{fence[1]}```")
        said = re.fullmatch(r" *<!-- output: (\S+) -->", lines[number - 1])
        body = tuple(line.removeprefix(fence[1]) for line in lines[number + 1 : end])
        yield Block(page, number + 1, fence[2], body, said[1] if said else "")
        number = end + 1


def typed() -> Iterator[tuple[str, str]]:
    """Where and what: each command of a shell block, without its comment."""
    for block in blocks():
        if block.language in SHELL:
            for command in block.commands:
                yield block.where, re.split(r" {2,}| ; ", command)[0]


def spoken() -> Iterator[tuple[str, str]]:
    """Where and what: each command that running text names as code."""
    for page in PAGES:
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
        for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text):
            words = " ".join(code.split())
            if COMMAND.match(words):
                yield str(page.relative_to(ROOT)), words
