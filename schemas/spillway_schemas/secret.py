"""Values that must not be shown: where they are opened, and how texts are kept free of them.

Every value of `kafka.options` and `warehouse.options` is a `SecretStr`, whatever its name: a
password stands beside options of no consequence, and a name with a typing error is not known for
what it was meant to be. A value is opened (`revealed`) where a client is made, and nowhere else.
`shown` is what people see: values of the names listed here as harmless, and of no others. Libraries
quote values in their errors, so what comes from them is told through `hide`.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote

from pydantic import SecretStr

HIDDEN = "(hidden)"

Options = Mapping[str, str | SecretStr]
"""Options of a client by their names."""

_HARMLESS = frozenset(
    {
        "acks",
        "allow_http",
        "allow_invalid_certificates",
        "aws_endpoint",
        "aws_region",
        "aws_virtual_hosted_style_request",
        "azure_storage_account_name",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "compression.type",
        "connect_timeout",
        "max.poll.records",
        "pool_idle_timeout",
        "read_timeout",
        "retries",
        "retry_timeout",
        "sasl.kerberos.service.name",
        "sasl.mechanism",
        "security.protocol",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "timeout",
    }
)
_COUNTS = (".ms", ".bytes")
"""How names of spans and sizes end. Something else than a number there is a mistake, perhaps of a
secret's place."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")

_LEAST = 4
"""Shorter pieces of a secret are words that any text may hold."""
_SPLIT = re.compile(r"""[\s;="',:]+""")
_JAAS_WORDS = re.compile(r"required|requisite|sufficient|optional|username|password|[\w.]+Module")
_USER = re.compile(r"""username\s*=\s*(?:"[^"]*"|'[^']*'|[^\s;]*)""")
"""Of a login module's line. It is no secret, and often a word that stands elsewhere, too."""
_WORD = re.compile(r"\S+")
_CREDENTIALS = re.compile(
    r"""://(?!/)                           # scheme://NAME:SECRET@host, not file:///a@b
    | (?:^|['"`(\[{<,;=])(?![/.])(?=[^:='"`(\[{<,;]*:(?!//))  # NAME:SECRET@host""",
    re.VERBOSE,
)
"""What credentials come behind, in what stands before the last @ of a word."""
_AT = re.compile(r"@(?=[\w.\[-])")
_QUOTED = re.compile(r"""(["'])((?:(?!\1)[^\\]|\\.)*)\1""", re.DOTALL)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"}
"""What would end the quoted text, or begin an escape."""
_CONTROLS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def revealed(options: Options) -> dict[str, str]:
    """The values themselves, for the client that needs them."""
    return {name: _open(value) for name, value in options.items()}


def shown(options: Options) -> dict[str, str]:
    """What may be shown: values of harmless names, the word "(hidden)" for all others."""
    opened = revealed(options)
    return {
        name: hide_credentials(value) if _is_harmless(name, value) else HIDDEN
        for name, value in opened.items()
    }


def hide(text: str, options: Options) -> str:
    """The text with every secret value in it, or word of one, and all credentials replaced.

    Hide first, then cut: a part of a secret is not found.
    """
    pieces = {piece for each in _secrets(options) for piece in _pieces(each)}
    for piece in sorted(pieces, key=len, reverse=True):
        text = text.replace(piece, HIDDEN)
    return hide_credentials(text)


def hide_credentials(text: str) -> str:
    """The text without what stands before the @ of an address: `s3://key:secret@bucket`.

    A secret may hold any character, so it ends with the last @ of its word.
    """
    return _WORD.sub(_without_credentials, text) if "@" in text else text


def hide_before_at(value: str) -> str:
    """A value that should be an address or a place, without what stands before its last @."""
    return f"{HIDDEN}@{value.rpartition('@')[2]}" if "@" in value else value


def unescaped(text: str) -> str:
    """What stands between quotes in a login module's line, as Java's parser of it
    (`StreamTokenizer`) reads it."""
    return _ESCAPE.sub(_character, text)


def escaped(text: str) -> str:
    """Text as it is written between double quotes in a login module's line: `unescaped` reads it
    back."""
    return "".join(_ESCAPED.get(character, character) for character in text)


def _character(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _CONTROLS.get(code, code)


def _without_credentials(word: re.Match[str]) -> str:
    text = word[0]
    last = max((at.start() for at in _AT.finditer(text)), default=0)
    found = _CREDENTIALS.search(text, 0, last)
    return f"{text[: found.end()]}{HIDDEN}{text[last:]}" if found else text


def _is_harmless(name: str, value: str) -> bool:
    if name in _HARMLESS:
        return True
    counts = name.endswith(_COUNTS) and not name.startswith(("sasl.", "ssl."))
    return counts and _NUMBER.fullmatch(value) is not None


def _open(value: str | SecretStr) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _secrets(options: Options) -> Iterable[str]:
    return (value for name, value in revealed(options).items() if not _is_harmless(name, value))


def _pieces(secret: str) -> Iterator[str]:
    """The value and its words: an error may quote one word of a login module's line."""
    line = _USER.sub("", secret)
    quoted = [unescaped(each[2]) for each in _QUOTED.finditer(line)]
    words = (word for each in (line, *quoted) for word in _SPLIT.split(each))
    spelt = (each(secret)[1:-1] for each in (repr, ascii, json.dumps))
    # A signature of a URL is shown as the URL has it, alone or with what stands beside it.
    parts = [part.partition("=")[2] or part for part in secret.lstrip("?").split("&")]
    read = [unquote(part) for part in parts]
    each_way = (secret, *parts, *read)
    in_urls = [spell(each, safe="") for each in each_way for spell in (quote, quote_plus)]
    # A name and a password of HTTP travel so.
    encoded = b64encode(secret.encode()).decode()
    for piece in (secret, *spelt, *quoted, *words, *parts, *read, *in_urls, encoded):
        if len(piece) >= _LEAST and not _JAAS_WORDS.fullmatch(piece):
            yield piece
