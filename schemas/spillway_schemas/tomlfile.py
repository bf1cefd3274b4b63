"""TOML files that people edit: read with the line of every key, so that errors can name it.

`tomllib` gives values but no positions. `TomlFile.line` finds them by a scan of the text that
understands table headers, dotted and quoted keys and multi-line strings. The scan never
decides what a value is; where it does not find a key (inside an inline table, say) the line of
the nearest enclosing key is given.

Known limitation: a `key =` at the beginning of a line inside a multi-line *array of inline
tables* is taken for a key of the current table. Only the line number in a message suffers.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Key = tuple[str | int, ...]
"""A place in the file: names of tables and keys, numbers for elements of arrays of tables."""

_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER = re.compile(rf"^\s*(\[\[?)\s*({_DOTTED})\s*\]\]?")
_ASSIGN = re.compile(rf"^\s*({_DOTTED})\s*=")
_PART = re.compile(_NAME)


class TomlError(ValueError):
    """The file cannot be read or is not TOML; the message names file and line."""


@dataclass(frozen=True)
class TomlFile:
    """A parsed file: `data` as `tomllib` gives it, `lines` for the keys found by the scan, `text`
    as it was written."""

    path: Path
    data: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)
    text: str = ""

    def line(self, key: Key) -> int | None:
        """Line (from 1) of `key`, or of the nearest table or key around it; None: not found."""
        for length in range(len(key), 0, -1):
            if (found := self.lines.get(tuple(key[:length]))) is not None:
                return found
        return None

    def where(self, key: Key) -> str:
        """`file:line` of `key` for a message, or the file alone where the line is unknown."""
        line = self.line(key)
        return f"{self.path}:{line}" if line else str(self.path)


def read_toml(path: Path) -> TomlFile:
    """Read `path`. Raises TomlError when it is missing, not UTF-8 or not TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TomlError(f"{path.absolute()}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise TomlError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise TomlError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_toml(text, path)


def parse_toml(text: str, path: Path) -> TomlFile:
    """Parse `text`; `path` is for messages. Raises TomlError when it is not TOML."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        where = f"{path}:{found.group(1)}" if found else str(path)
        raise TomlError(f"{where}: not valid TOML: {_in_words(str(error))}") from None
    return TomlFile(path, data, _scan(text), text)


_QUOTED = 'text is written in quotes, e.g. root = "var/x", size = "512MiB"'
_WORDS = {
    r"Illegal character '\\[nr]'": "a quote is not closed on its line",
    r'Expected "\'"': "a quote is not closed",
    r"Unterminated string": "a text in three quotes is not closed",
    r"Invalid value": f"the value is missing or not valid TOML; {_QUOTED}",
    r"Expected newline or end of document": f"something follows the value; {_QUOTED}",
    r"Cannot overwrite a value": "this name has a value already; each may be there once",
    r"Cannot declare \('(.*)',\) twice": r"[\1] is there twice; write its lines together",
    r"Cannot declare \('(\w*)', '(\w*)'\) twice": (
        r"[\1.\2] is there twice; write its lines together"
    ),
    r"Expected '=' after a key|Invalid statement": "a line is name = value or [section]",
    r"Unescaped '\\' in a string|Invalid hex value": (
        "in double quotes a backslash is written twice; single quotes take it as it is"
    ),
    r"Expected '\]' at the end of a table": "the ] of a [section] is missing",
    r"Unclosed inline table": "a { is not closed; what begins with it must be on one line",
    r"Unclosed array": "a [ is not closed, or a comma between its values is missing",
}
"""What tomllib finds, as who has made the mistake would say it."""


def _in_words(error: str) -> str:
    for pattern, words in _WORDS.items():
        if found := re.search(pattern, error):
            return found.expand(words)
    return re.sub(r"\s*\(at .*\)$", "", error)


def _scan(text: str) -> dict[Key, int]:
    """Lines of table headers and assignments."""
    lines: dict[Key, int] = {}
    elements: dict[Key, int] = {}
    table: Key = ()
    closing = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if closing:
            if closing in line:
                closing = ""
            continue
        if header := _HEADER.match(line):
            table = _resolve(_parts(header.group(2)), elements)
            if header.group(1) == "[[":
                elements[table] = elements.get(table, -1) + 1
                table = (*table, elements[table])
            for length in range(1, len(table) + 1):
                lines.setdefault(table[:length], number)
        elif assign := _ASSIGN.match(line):
            key = table
            for part in _parts(assign.group(1)):
                key = (*key, part)
                lines.setdefault(key, number)
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2:
                closing = quotes
    return lines


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _resolve(parts: tuple[str, ...], elements: dict[Key, int]) -> Key:
    """A header below an array of tables means that array's latest element."""
    key: Key = ()
    for position, part in enumerate(parts):
        key = (*key, part)
        if position < len(parts) - 1 and key in elements:
            key = (*key, elements[key])
    return key
