"""What kind of fault a row was rejected for: one of a few words.

A reason is a sentence for people. It names a field, may quote a parser, and so differs from row to
row; a time series for each would be one for each row. Here sentences become `KINDS`, a fixed list,
and what is not on it is `other`. The sentences are those of `spillway_schemas.messages` and
`spillway.decode`; a test holds both together.
"""

from __future__ import annotations

import re

OTHER = "other"

_OF_THE_VALUE: tuple[tuple[str, str], ...] = (
    ("tombstone", r"tombstone: "),
    ("empty", r"empty value$"),
    ("not_utf8", r"not UTF-8 "),
    ("not_json", r"not JSON: "),
    ("not_object", r"a JSON object is needed$"),
    ("too_deep", r"nested too deeply$"),
    ("too_large", r"larger than \d+ bytes, "),
    ("no_schema_id", r"no schema id: "),
    ("unknown_schema", r"schema \d+: "),
    ("bad_schema", r"(schema \d+|\S+) (cannot be read: |cannot be resolved |has no message )"),
    ("not_decoded", r"not [A-Za-z]\w*( by (schema \d+|\S+))?: "),
)
LATE = "late"
_OF_A_FIELD: tuple[tuple[str, str], ...] = (
    ("missing", r"missing$"),
    ("wrong_type", r"(a string|a number|a whole number|true or false) is needed$"),
    ("not_finite", r"a finite number is needed$|holds a number that is not finite$"),
    ("out_of_range", r"Input should be (less|greater) than or equal to "),
    ("bad_time", r"not a time with an offset |no such (day|offset) |not in the years "),
    (
        "bad_decimal",
        r"not a number or a string of digits$|does not fit decimal|a JSON number keeps",
    ),
    ("null_key", r"the join key is null$"),
    (LATE, r"late by [\d.]+ s: "),
    ("ahead", r"[\d.]+ s ahead of Kafka, "),
)
_MORE = re.compile(r" \(and \d+ more\)$")
_FIELD = re.compile(r"[A-Za-z_][\w.]*: ")

KINDS: tuple[str, ...] = (*(kind for kind, _ in (*_OF_THE_VALUE, *_OF_A_FIELD)), OTHER)
"""Every kind there is. `other`: an expression of the query that failed on the row, mostly."""


def kind_of(reason: str) -> str:
    """The kind of a reason as `quarantine` holds it. Never raises: what is not known is `other`."""
    text = _MORE.sub("", reason)
    if (kind := _first(_OF_THE_VALUE, text)) is not None:
        return kind
    field = _FIELD.match(text)
    return (_first(_OF_A_FIELD, text[field.end() :]) if field else None) or OTHER


def _first(patterns: tuple[tuple[str, str], ...], text: str) -> str | None:
    return next((kind for kind, pattern in patterns if re.match(pattern, text)), None)
