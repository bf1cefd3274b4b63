"""SQL expressions in a query: what may stand in them.

A library evaluates expressions (`spillway.decode.expressions`); nothing here parses them. This
module only cuts the text into tokens and refuses every token that is not on a list: columns,
literals, operators, a few keywords, and functions that look at one row and nothing else.
What is not listed cannot reach the library: no sub-select, no file or table function, no
aggregate or window, no clock, no chance, and no cast that fails on a row (`try_cast` gives null).

A value must follow from its row alone, however rows are batched. So these are refused, too:

* a cast of text to a date or a time: the library takes the format from the first text of a batch;
* patterns, formats and counts that are no literals: the library compiles one for a batch, or one
  a row, and takes another way for a single row;
* a pattern of `strpos` with a character that means something in a regular expression.

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
    int integer bigint smallint double float real varchar text string boolean bool
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

LITERAL_AFTER_FIRST = _words(
    """
    strpos replace starts_with ends_with left right substr substring round strftime
    """
)
"""Functions whose arguments must be literals, all but the first."""
LITERAL_FIRST = _words("date_trunc date_part concat_ws")
"""Functions whose first argument must be a literal."""
_PATTERN = re.compile(r"[.^$*+?()\[\]{}|\\]")
"""What means something in a regular expression."""

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


_QUALIFIED = re.compile(
    r"""(?P<kept>'(?:[^']|'')*' | "[^"]+" | \d+(?:\.\d+)?)
      | (?P<stream>[A-Za-z_][A-Za-z0-9_]*)\.(?=[A-Za-z_"])""",
    re.VERBOSE,
)


class ExpressionError(ValueError):
    """An expression that is refused; the message says what is allowed."""


def plain_column(text: str) -> str | None:
    """The column's name when the expression is nothing but a column."""
    tokens = _tokens(text)
    if len(tokens) == 1 and tokens[0][0] in ("name", "quoted"):
        name = tokens[0][1].strip('"')
        return None if tokens[0][0] == "name" and _is_keyword(name) else name
    return None


def column_text(name: str) -> str:
    """The expression that is nothing but a column."""
    return f'"{name}"' if _is_keyword(name) else name


def _is_keyword(name: str) -> bool:
    """Whether a name alone would not be taken for a column."""
    return name.lower() in KEYWORDS - {"date", "timestamp"}


def unqualified(text: str) -> tuple[str | None, str]:
    """(the stream that the columns are said to be of, the expression with their names alone).

    `date_trunc('minute', c.ts)` gives `("c", "date_trunc('minute', ts)")`; None: it names none.
    Raises ExpressionError when it names several.
    """
    streams: list[str] = []

    def without(found: re.Match[str]) -> str:
        if found["kept"]:
            return found["kept"]
        streams.append(found["stream"])
        return ""

    expression = _QUALIFIED.sub(without, text)
    if len(set(streams)) > 1:
        listed = ", ".join(dict.fromkeys(streams))
        raise ExpressionError(f"it reads columns of several streams ({listed}): take one of them")
    return (streams[0] if streams else None), expression


def normalised(text: str) -> str:
    """The same expression with single spaces, for comparing and fingerprints."""
    return " ".join(token for _, token in _tokens(text))


def cases_of(text: str) -> list[str]:
    """Each `case ... end` of an expression, as an expression of its own; inner ones first."""
    tokens = [token for _, token in _tokens(text)]
    begun: list[int] = []
    found = []
    for position, token in enumerate(tokens):
        if token.lower() == "case":
            begun.append(position)
        elif token.lower() == "end" and begun:
            found.append(" ".join(tokens[begun.pop() : position + 1]))
    return found


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
                raise ExpressionError("there is a ) without a ( before it")
        elif token == "*" and (before in _BEFORE_OPERAND or before.lower() in KEYWORDS):
            raise ExpressionError("* stands for multiplication only")
        elif kind == "quoted":
            used.add(_column(token.strip('"'), columns))
        elif kind == "name":
            _name(token, before, after, columns, used)
            _literals(token.lower(), tokens[position + 1 :])
    if depth:
        raise ExpressionError("a ( is not closed")
    if not used:
        raise ExpressionError(_reads_nothing(tokens, columns))
    return frozenset(used)


def _reads_nothing(tokens: list[tuple[str, str]], columns: frozenset[str]) -> str:
    words = {token.lower() for _, token in tokens if _is_keyword(token)}
    if meant := sorted(name for name in columns if name.lower() in words):
        return f'{meant[0]} is a word of SQL: for the column write "{meant[0]}" in quotes'
    return "it reads no column, so it is the same for every row"


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
        if lower in ("date", "timestamp"):
            raise ExpressionError(
                f"a cast to {lower} is not allowed: how a text is read would depend on the texts "
                "beside it. Give the field the type timestamp in the stream's fields, and use "
                "date_trunc('day', field) for its day"
            )
        if lower not in TYPES:
            raise ExpressionError(f"type {token} is not allowed; allowed: {_listed(TYPES)}")
    elif lower in PARTS and before == "(" and after.lower() == "from":
        pass  # extract(<part> from ...)
    elif lower not in KEYWORDS or (lower in ("date", "timestamp") and not after.startswith("'")):
        used.add(_column(token, columns))


def _literals(name: str, rest: list[tuple[str, str]]) -> None:
    """Refuse a column where a function, or `like`, takes one pattern or count for all rows."""
    if name in ("like", "ilike"):
        if not rest or not rest[0][0] == "text":
            raise ExpressionError(f"{name} needs a pattern in quotes behind it")
        return
    if not rest or rest[0][1] != "(":
        return
    if name in LITERAL_AFTER_FIRST:
        wanted = _arguments(rest)[1:]
    elif name in LITERAL_FIRST:
        wanted = _arguments(rest)[:1]
    else:
        return
    for argument in wanted:
        if not _is_literal(argument):
            which = "first argument" if name in LITERAL_FIRST else "arguments after the first"
            raise ExpressionError(
                f"the {which} of {name} must be written out: a number, or text in single quotes"
            )
        if name == "strpos" and (odd := _PATTERN.search(argument[0][1])):
            raise ExpressionError(
                f"strpos takes no {odd[0]!r}: it would be read as a regular expression. Use like"
            )


def _arguments(rest: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """The tokens of each argument, from the function's bracket on."""
    found: list[list[tuple[str, str]]] = [[]]
    depth = 0
    for kind, token in rest:
        depth += (token == "(") - (token == ")")
        if not depth:
            break
        if token == "," and depth == 1:
            found.append([])
        elif token != "(" or depth > 1:
            found[-1].append((kind, token))
    return found


def _is_literal(tokens: list[tuple[str, str]]) -> bool:
    if len(tokens) == 2 and tokens[0][1] in ("-", "+"):
        return tokens[1][0] == "number"
    return len(tokens) == 1 and tokens[0][0] in ("text", "number")


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
            if text[position] in "'\"":
                raise ExpressionError(f"the quote before {text[position + 1 :]} is not closed")
            raise ExpressionError(f"{text[position : position + 10]!r} is not allowed here")
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append((kind, match.group()))
        position = match.end()
    return tokens
