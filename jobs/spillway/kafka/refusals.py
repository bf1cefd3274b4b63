"""Why a broker does not take a client: kafka-python tells its log, and raises a timeout.

While a client connects, its log is listened to. What it says of each failed attempt is told apart:
a certificate that one side does not trust, a password, a mechanism, a listener with TLS or a login
where the client has none, or the other way round.
"""

from __future__ import annotations

import logging
import re
from types import TracebackType
from typing import NamedTuple

from spillway_schemas.secret import Options, hide, revealed

_FAILED = re.compile(r"connection to \S+ failed: (.*?)(?: \(backoff .*)?$", re.DOTALL)


class _Kind(NamedTuple):
    """A reason why a broker does not take a client."""

    pattern: str
    meaning: str
    is_silent: bool = False
    """The broker said nothing: one that is starting or stopping ends connections, too."""


_KINDS = (
    _Kind(
        r"CERTIFICATE_VERIFY_FAILED",
        "its certificate is not signed by an authority that this client trusts",
    ),
    _Kind(r"alert|bad certificate", "it rejects this client's certificate, or requires one"),
    _Kind(r"SaslAuthenticationFailed", "the user or the password is wrong"),
    _Kind(r"UnsupportedSaslMechanism", "it has no such sasl.mechanism"),
    _Kind(r"IllegalSaslState", "it takes no login at this address: security.protocol without SASL"),
    _Kind(r"WRONG_VERSION_NUMBER", "it speaks no TLS"),
    _Kind(r"UNEXPECTED_EOF", "it ends the TLS handshake, as a broker without TLS does", True),
    _Kind(r"socket disconnected", "it ends the connection, as a broker does that wants {}", True),
)
"""In the order in which they are believed: who has a wrong password is sent away, too."""
_MORE = {
    "PLAINTEXT": "TLS or a login (security.protocol)",
    "SSL": "a login (security.protocol = SASL_SSL) or a client's certificate",
}
_OTHER = "TLS, or another user or password"
_NONE = len(_KINDS)
OFTEN = 4


class Refusals(logging.Handler):
    """Hears what kafka-python logs of failed connections. A context manager."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: list[str] = []

    def __enter__(self) -> Refusals:
        logging.getLogger("kafka").addHandler(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logging.getLogger("kafka").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take over a line of the log."""
        if found := _FAILED.search(record.getMessage()):
            self._said.append(found[1])

    @property
    def is_certain(self) -> bool:
        """Whether trying again does not help: a broker has said what it does not take, or has ended
        connection after connection (of a wrong password the client often sees no more)."""
        known = [_KINDS[place] for place in map(_place, self._said) if place != _NONE]
        if not all(kind.is_silent for kind in known):
            return True
        return OFTEN <= len(known) == len(self._said)

    def why(self, options: Options) -> str:
        """Why the broker did not take the client, with the library's own words; empty where nobody
        answered. Without the secrets in `options`."""
        said = min(self._said, key=_place, default="")
        if (place := _place(said)) == _NONE:
            return ""
        protocol = revealed(options).get("security.protocol", "PLAINTEXT").upper()
        meaning = _KINDS[place].meaning.format(_MORE.get(protocol, _OTHER))
        return hide(f"{meaning} ({said})", options)


def _place(said: str) -> int:
    """Which of `_KINDS` a line of the log is of; `_NONE`: of none."""
    found = (n for n, kind in enumerate(_KINDS) if re.search(kind.pattern, said, re.IGNORECASE))
    return next(found, _NONE)
