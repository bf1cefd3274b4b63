"""Object stores: which URIs name one, and what their clients may be told. Pure.

Options have the names that delta-rs and its client library (`object_store`) know: those of a
provider begin with `aws_`, `google_` or `azure_`; the others are of the connection. Spans are
written as `30s` or `2 minutes`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from spillway_schemas.durations import duration_us

PROVIDERS = {"s3": "aws_", "gs": "google_", "abfss": "azure_"}
"""By the scheme of a URI, how the names of its provider's options begin."""

RETRY_TIMEOUT = "retry_timeout"
SPANS = frozenset(
    {"timeout", "connect_timeout", "read_timeout", "pool_idle_timeout", RETRY_TIMEOUT}
)
"""Options whose values are spans of time."""

CONNECTION = SPANS | {
    "allow_http",
    "allow_invalid_certificates",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "root_certificate",
    "user_agent",
}
"""Options of the connection, whatever the provider."""

DEFAULTS = {"timeout": "30s", "connect_timeout": "5s", RETRY_TIMEOUT: "60s"}
"""What holds without an option: one answer, one connection, and all attempts at a request."""

REFUSED = {
    "aws_conditional_put": "commits need conditional puts, so they are always on",
    "aws_s3_allow_unsafe_rename": "commits would replace each other",
    "aws_s3_locking_provider": "commits go by conditional puts, not by a lock",
    "aws_copy_if_not_exists": "nothing is copied",
}
"""Options that nobody may set, each with the reason."""

REFUSED_VARIABLES = ("AWS_CONDITIONAL_PUT", "AWS_S3_ALLOW_UNSAFE_RENAME", "AWS_S3_LOCKING_PROVIDER")
"""Variables of the environment that delta-rs reads, which would do the same."""

_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._=-]*"
_URI = re.compile(
    rf"(?P<scheme>[a-z0-9]+)://(?P<bucket>(?:{_SEGMENT}@)?{_SEGMENT})"
    rf"(?P<key>(?:/{_SEGMENT})*)/?"
)
_AZURE = "abfss:// with the container, an @, and account.dfs.core.windows.net/folder"
"""In words: what stands before an @ is taken for a secret wherever messages are shown."""


class StoreLocation(NamedTuple):
    """Where in an object store something is."""

    scheme: str
    bucket: str
    """Of Azure: `container@account.dfs.core.windows.net`."""
    key: str
    """Without a slash at either end; may be empty."""

    @property
    def uri(self) -> str:
        """The same as a URI."""
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")


def scheme_of(place: str) -> str | None:
    """The scheme of a URI; None for a path."""
    scheme, colon, _ = place.partition(":")
    return scheme if colon and "/" not in scheme else None


def is_uri(place: str) -> bool:
    """Whether a place is the URI of an object store, and no local path."""
    return scheme_of(place) in PROVIDERS


def store_location(uri: str) -> StoreLocation:
    """The parts of a URI. Raises ValueError that says what is allowed."""
    match = _URI.fullmatch(uri)
    if match is None or match["scheme"] not in PROVIDERS:
        raise ValueError(
            f"{uri!r} does not name a place in an object store: write s3://bucket/folder, "
            f"gs://bucket/folder or {_AZURE}; names have letters, digits and . _ = -"
        )
    if (match["scheme"] == "abfss") != ("@" in match["bucket"]):
        raise ValueError(f"{uri!r}: an address of Azure is {_AZURE}, and no other has an @")
    return StoreLocation(match["scheme"], match["bucket"], match["key"].strip("/"))


def option_problem(name: str) -> str | None:
    """Why a store cannot have an option of this name; None when it can."""
    if name in REFUSED:
        return f"{name} cannot be set: {REFUSED[name]}"
    for prefix in PROVIDERS.values():  # the library takes one with a prefix, and panics
        if (bare := name.removeprefix(prefix)) != name and bare in CONNECTION:
            return f"{name} is no option: those of the connection have no prefix. Write {bare}"
    if name in CONNECTION or name.startswith(tuple(PROVIDERS.values())):
        return None
    providers = ", ".join(f"{each}..." for each in PROVIDERS.values())
    return f"{name!r} is no option of an object store: there are {providers} and " + ", ".join(
        sorted(CONNECTION)
    )


def span_s(text: str) -> float:
    """The seconds of an option that is a span of time. Raises ValueError."""
    return duration_us(text) / 1e6
