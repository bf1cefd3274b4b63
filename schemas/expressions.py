"""SQL expressions in a query: what may stand in them.

A library evaluates expressions (`jobs.decode.expressions`); nothing here parses them. This
module only cuts the text into tokens and refuses every token that is not on a list: columns,
literals, operators, a few keywords, and functions that look at one row and nothing else.
What is not listed cannot reach the library: no sub-select, no file or table function, no
aggregate or window (their value would depend on how rows were batched), no clock, no chance,
and no cast that fails on a row (`try_cast` gives null).

Brackets must balance and never close more than was opened, so that `(<expression>)` stays one
expression whatever it holds.
"""

from __future__ import annotations

import difflib
import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS = _words(
    """
    abs ceil ceiling floor round sign mod div sqrt lower upper length char_length octet_length
    left right substr substring trim ltrim rtrim replace reverse starts_with ends_with strpos
    concat concat_ws initcap coalesce nullif greatest least date_trunc date_part extract
    strftime try_cast
    """
)
"""Functions that may be called: each gives one value per row from that row alone."""

KEYWORDS = _words(
    """
    and or not is null in between like ilike case when then else end true false as from for
    interval date timestamp
    """
)
TYPES = _words(
    """
    int integer bigint smallint double float real varchar text string boolean bool date
    timestamp
    """
)
"""What may follow `try_cast(x as`."""

PARTS = _words(
    """
    year quarter month week day dow doy hour minute second millisecond microsecond epoch
    isoyear isodow
    """
)
"""What `extract(<part> from x)` may name."""

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"[^"]+")
      | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<comment>--|/\*|\*/)
      | (?P<operator><=|>=|<>|!=|\|\||[=<>+\-*/%(),])""",
    re.VERBOSE,
)
_BEFORE_OPERAND = _words(
    """
    ( , = < > <= >= <> != || + - * / %
    """
)


class ExpressionError(ValueError):
    """An expression that is refused; the message says what is allowed."""


def plain_column(text: str) -> str | None:
    """The column's name when the expression is nothing but a column."""
    tokens = _tokens(text)
    if len(tokens) == 1 and tokens[0][0] in ("name", "quoted"):
        name = tokens[0][1].strip('"')
        return None if tokens[0][0] == "name" and name.lower() in KEYWORDS else name
    return None


def normalised(text: str) -> str:
    """The same expression with single spaces, for comparing and fingerprints."""
    return " ".join(token for _, token in _tokens(text))


def columns_of(text: str, columns: frozenset[str]) -> frozenset[str]:
    """Check every token of `text` and give the columns that it reads.

    `columns`: the names that exist. Raises ExpressionError for anything that is not allowed.
    """
    tokens = _tokens(text)
    if not tokens:
        raise ExpressionError("an empty expression")
    used: set[str] = set()
    depth = 0
    for position, (kind, token) in enumerate(tokens):
        before = tokens[position - 1][1] if position else "("
        after = tokens[position + 1][1] if position + 1 < len(tokens) else ""
        if kind == "comment":
            raise ExpressionError("comments are not allowed; put a space between - and -")
        if token == "(":
            depth += 1
        elif token == ")":
            depth -= 1
            if depth < 0:
                raise ExpressionError(") without (")
        elif token == "*" and (before in _BEFORE_OPERAND or before.lower() in KEYWORDS):
            raise ExpressionError("* stands for multiplication only")
        elif kind == "quoted":
            used.add(_column(token.strip('"'), columns))
        elif kind == "name":
            _name(token, before, after, columns, used)
    if depth:
        raise ExpressionError("( without )")
    if not used:
        raise ExpressionError("it reads no column, so it is the same for every row")
    return frozenset(used)


def _name(token: str, before: str, after: str, columns: frozenset[str], used: set[str]) -> None:
    lower = token.lower()
    if after == "(" and lower not in ("in", "and", "or", "not", "when", "then", "else"):
        if lower == "cast":
            raise ExpressionError("use try_cast: it gives null where cast would fail")
        if lower not in FUNCTIONS:
            raise ExpressionError(
                f"function {token} is not allowed; allowed: {', '.join(sorted(FUNCTIONS))}"
            )
    elif before.lower() == "as":
        if lower not in TYPES:
            raise ExpressionError(f"type {token} is not allowed; allowed: {_listed(TYPES)}")
    elif lower in PARTS and before == "(" and after.lower() == "from":
        pass  # extract(<part> from ...)
    elif lower not in KEYWORDS or (lower in ("date", "timestamp") and not after.startswith("'")):
        used.add(_column(token, columns))


def _column(name: str, columns: frozenset[str]) -> str:
    if name not in columns:
        near = difflib.get_close_matches(name, sorted(columns), n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are: {_listed(columns)}"
        raise ExpressionError(f"there is no column {name}{hint}")
    return name


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ExpressionError(f"{text[position : position + 10]!r} is not allowed here")
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append((kind, match.group()))
        position = match.end()
    return tokens
