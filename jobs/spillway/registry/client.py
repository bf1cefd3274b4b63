"""A client of the Schema Registry's HTTP API, which Confluent's, Karapace and others speak.

What it asks: a schema by its id, and what that refers to by subject and version. Protobuf's schemas
are asked for serialized (`format=serialized`). Not every registry can: Apicurio gives their text in
any case, or what is no base64, or 500. That text is compiled here.

Failure paths. A schema that the registry does not have is an answer. A registry that is away (no
connection, no answer, 429, 5xx) is asked again for `wait_s`, then it is `RegistryUnavailable`. One
that answers otherwise (who we are, what we ask, HTML of a proxy) is not asked again:
`RegistryRefuses`. Neither says anything of a message.
"""

from __future__ import annotations

import base64
import functools
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection
from typing import Any

from spillway.decode.formats.decoder import FormatError, NoCompiler
from spillway_schemas.exits import FAILED
from spillway_schemas.formats import WriterSchema
from spillway_schemas.secret import Options, hide, revealed

REGISTRY_ANSWER_S = 10.0
"""How long an answer may take."""
MOST_ANSWER_BYTES = 16 << 20
"""A schema is far smaller."""
WAITS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Between two tries; the last one again and again."""
NOT_FOUND = {40401: "subject", 40402: "version", 40403: "schema"}
"""A registry's own codes. A 404 without one is somebody else's."""
MOST_REFERENCES = 200
"""Of a schema, and what these refer to, all in all."""
ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
CANNOT_SERIALIZE = frozenset({400, 422, 500, 501})
"""What a registry answers that cannot give a schema serialized. Not 404: that has lost it."""
_SERIALIZED = re.compile(r"[A-Za-z0-9+/]+={0,2}")
"""Text of Protobuf's language has other characters."""
_EXCEPTION = re.compile(r"^(\w+\.)+\w+: ")
"""The name of a class in Java, with which some answers begin."""
MOST_TOLD = 500
"""Characters of what a registry says of an error."""


class SchemaTrouble(RuntimeError):
    """What an id means cannot be known now. Nothing becomes of its messages."""

    exit_code = FAILED

    def __init__(self, told: str, status: int | None = None) -> None:
        """`status`: of the registry's answer over HTTP."""
        super().__init__(told)
        self.status = status

    @staticmethod
    def told_by(error: BaseException) -> SchemaTrouble | None:
        """The one that a task raised, in the text of the error of its job; None: it is another."""
        found = _TOLD.search(str(error))
        return _TROUBLES[found[1]](found[2].strip()) if found else None


class RegistryUnavailable(SchemaTrouble):
    """The registry does not answer; later it may."""


class RegistryRefuses(SchemaTrouble):
    """The registry does not answer what it is asked, and will not later."""


class DamagedSchema(SchemaTrouble):
    """A file of what ids mean is not as it was written."""


_TROUBLES: dict[str, type[SchemaTrouble]] = {
    each.__name__: each for each in (RegistryUnavailable, RegistryRefuses, DamagedSchema)
}
_TOLD = re.compile(rf"\b({'|'.join(_TROUBLES)}): (.*)")


class NotThere(LookupError):
    """The registry has no such thing; the message says what."""


class RegistryClient:
    """Asks the registries of one cluster. Picklable; keeps no connection."""

    def __init__(
        self,
        urls: str,
        options: Options,
        *,
        wait_s: float,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`urls`: separated by commas; the next one is asked where one is away."""
        self.urls = tuple(each.strip().rstrip("/") for each in urls.split(",") if each.strip())
        self._options = dict(options)
        self._wait_s = wait_s
        self._sleep = sleep
        self._clock = clock

    def schema(self, schema_id: int) -> WriterSchema:
        """A schema by its id. Raises NotThere, RegistryUnavailable, RegistryRefuses."""
        path = f"/schemas/ids/{schema_id}"
        return self._whole(schema_id, path, self.ask(path))

    def latest(self, subject: str) -> WriterSchema:
        """The last version of a subject. Raises as `schema` does."""
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest"
        found = self.ask(path)
        if not isinstance(found.get("id"), int):
            raise self._odd(path, found)
        return self._whole(found["id"], path, found)

    def register(self, subject: str, kind: str, text: str) -> int:
        """Give a subject a schema, or find it there; its id. Raises as `schema` does."""
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        try:
            found = self.ask(path, {"schemaType": kind, "schema": text})
        except RegistryRefuses as error:
            if error.status != 409:
                raise
            raise RegistryRefuses(
                f"{error}. The new schema of {subject} is not compatible with its earlier "
                "versions: change the stream's fields, or take another topic or another "
                "compatibility level of the subject",
                409,
            ) from None
        if not isinstance(found.get("id"), int):
            raise self._odd(path, found)
        return int(found["id"])

    def ask(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        final: Collection[int] = (),
    ) -> dict[str, Any]:
        """The answer to a GET, or to a POST of `body`. Raises as `schema` does.

        `final`: statuses after which none is asked again, when all have answered so.
        """
        if not self.urls:
            raise RegistryRefuses(
                "values of a stream begin with the id of a schema, and no registry is named: set "
                "registry.url, or give the stream the file of its schema (writer)"
            )
        until = self._clock() + self._wait_s
        tries = 0
        while True:
            errors: list[RegistryUnavailable] = []
            for url in self.urls:
                try:
                    return self._once(url, path, body)
                except RegistryUnavailable as error:
                    errors.append(error)
            left = until - self._clock()
            if left <= 0 or all(each.status in final for each in errors):
                raise errors[-1]
            self._sleep(min(left, WAITS_S[min(tries, len(WAITS_S) - 1)]))
            tries += 1

    def _once(self, url: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        request = urllib.request.Request(url + path, headers={"Accept": ACCEPT, **self._login()})
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        try:
            until = self._clock() + REGISTRY_ANSWER_S
            with self._opener().open(request, timeout=REGISTRY_ANSWER_S) as answer:
                return self._object(url, self._read(answer, until))
        except urllib.error.HTTPError as error:
            raise self._refused(url, path, error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            # An end in the middle of the handshake is a server that goes, as a reset is.
            goes = (TimeoutError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
            if isinstance(reason, ssl.SSLError) and not isinstance(reason, goes):
                told = self._told(reason)
                raise RegistryRefuses(
                    f"the schema registry at {url}: no TLS with it ({told}). Check "
                    "ssl.truststore.location in registry.options"
                ) from None
            told = self._told(reason)
            raise RegistryUnavailable(
                f"the schema registry at {url} does not answer ({told})"
            ) from None

    def _read(self, answer: Any, until: float) -> bytes:
        """The body of an answer. A server may send it in drops: each is in time, all are not.

        Raises TimeoutError, and OSError for one that is too large.
        """
        data = bytearray()
        while part := answer.read1(1 << 16):
            data += part
            if self._clock() > until:
                raise TimeoutError(f"its answer takes over {REGISTRY_ANSWER_S:.0f} s")
            if len(data) > MOST_ANSWER_BYTES:
                raise OSError(f"its answer has over {MOST_ANSWER_BYTES >> 20} MiB")
        return bytes(data)

    def _refused(self, url: str, path: str, error: urllib.error.HTTPError) -> Exception:
        said: dict[str, Any] = {}
        with error:
            try:
                said = json.loads(self._read(error, self._clock() + REGISTRY_ANSWER_S))
            except (OSError, ValueError, RecursionError, http.client.HTTPException):
                pass
        code = said.get("error_code") if isinstance(said, dict) else None
        if error.code == 404 and code in NOT_FOUND:
            return NotThere(f"the registry has no such {NOT_FOUND[code]}")
        message = str(said.get("message", "")) if isinstance(said, dict) else ""
        told = self._told(_EXCEPTION.sub("", message), MOST_TOLD).rstrip(". ")
        if error.code == 429 or error.code >= 500:
            reason = f"HTTP {error.code}" + (f", {told}" if told else "")
            return RegistryUnavailable(
                f"the schema registry at {url} does not answer ({reason})", error.code
            )
        why = {
            401: "it does not know this user: check basic.auth.user.info in registry.options",
            403: "this user may not read schemas: grant it that",
            404: "no registry is there: check registry.url",
        }.get(error.code, told or "it gives no reason")
        return RegistryRefuses(
            f"the schema registry at {url}{path}: HTTP {error.code}, {why}", error.code
        )

    def _object(self, url: str, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise RegistryRefuses(
                f"what answers at {url} is no schema registry: check registry.url"
            )
        return found

    def _odd(self, path: str, found: dict[str, Any]) -> RegistryRefuses:
        return RegistryRefuses(
            f"the schema registry at {self.urls[0]}{path} answers without what was asked for: "
            f"{self._told(', '.join(found))}"
        )

    def _told(self, what: object, most: int = 200) -> str:
        return hide(str(what), self._options)[:most]

    def _login(self) -> dict[str, str]:
        options = revealed(self._options)
        if user := options.get("basic.auth.user.info"):
            return {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()}
        if token := options.get("bearer.auth.token"):
            return {"Authorization": f"Bearer {token}"}
        return {}

    def _opener(self) -> urllib.request.OpenerDirector:
        options = revealed(self._options)
        named = (
            options.get(f"ssl.{name}")
            for name in ("truststore.location", "keystore.location", "key.password")
        )
        return _opener(*named)

    # ------------------------------------------------------------------------- whole schemas

    def _whole(self, schema_id: int, path: str, found: dict[str, Any]) -> WriterSchema:
        kind = found.get("schemaType", "AVRO")
        if not isinstance(kind, str):
            raise self._odd(path, found)
        references: dict[str, str] = {}
        self._refer(path, found, kind, references, ())
        text = self._text(path, found, kind, references)
        return WriterSchema(schema_id, kind, text, tuple(references.items()))

    def _text(self, path: str, found: dict[str, Any], kind: str, references: dict[str, str]) -> str:
        """The text of an answer; of Protobuf serialized, where it can be had so."""
        text = found.get("schema")
        if not isinstance(text, str):
            raise self._odd(path, found)
        if kind != "PROTOBUF" or _SERIALIZED.fullmatch(text):
            return text
        trouble: SchemaTrouble | None = None
        try:
            query = ("&" if "?" in path else "?") + "format=serialized"
            said = self.ask(path + query, final=CANNOT_SERIALIZE)
            if not isinstance(said.get("schema"), str):
                raise self._odd(path, said)
            if _SERIALIZED.fullmatch(said["schema"]):
                return str(said["schema"])
        except SchemaTrouble as error:
            if error.status not in CANNOT_SERIALIZE:
                raise
            trouble = error
        try:
            return _compiled(text, tuple(references.items()))
        except FormatError as error:
            # A verdict only where the registry has said all that it can.
            if isinstance(trouble, RegistryUnavailable):
                raise RegistryUnavailable(
                    f"{trouble}, and the text of the schema is not read here ({self._told(error)})",
                    trouble.status,
                ) from None
            return text
        except (ImportError, OSError, NoCompiler) as error:
            raise RegistryRefuses(
                f"the schema registry at {self.urls[0]}{path} gives the text of a schema, "
                f"which cannot be compiled here: {self._told(error)}"
            ) from None

    def _refer(
        self,
        path: str,
        found: dict[str, Any],
        kind: str,
        into: dict[str, str],
        above: tuple[str, ...],
    ) -> None:
        """Add what a schema refers to, each behind what that refers to."""
        every = found.get("references") or []
        if not isinstance(every, list) or not all(isinstance(each, dict) for each in every):
            raise self._odd(path, found)
        for each in every:
            name, subject, version = (each.get(key) for key in ("name", "subject", "version"))
            # What stands in a path must be nothing else than the number of a version.
            if not (isinstance(name, str) and isinstance(subject, str) and type(version) is int):
                raise RegistryRefuses(
                    f"the schema registry at {self.urls[0]}{path} gives a reference without a "
                    "name, a subject and the whole number of a version: register the schema anew"
                )
            if name in into:
                continue
            if name in above:
                raise NotThere(f"its references have no end: {self._told(name)}")
            if len(above) + len(into) >= MOST_REFERENCES:
                raise NotThere(
                    f"it has over {MOST_REFERENCES} references: register it with what it refers to "
                    "written into it"
                )
            quoted = urllib.parse.quote(subject, safe="", errors="replace")
            place = f"/subjects/{quoted}/versions/{version}?deleted=true"
            try:
                below = self.ask(place)
            except NotThere:
                raise NotThere(f"it refers to {name}, which the registry does not have") from None
            self._refer(place, below, kind, into, (*above, name))
            into[name] = self._text(place, below, kind, into)


@functools.lru_cache(maxsize=8)
def _opener(
    authorities: str | None, certificate: str | None, password: str | None
) -> urllib.request.OpenerDirector:
    """For one trust store and certificate, both PEM. Raises RegistryRefuses."""
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate:
            context.load_cert_chain(certificate, password=password)
    except OSError as error:
        told = error.strerror or type(error).__name__
        raise RegistryRefuses(
            f"registry.options: a file of ssl.* cannot be used ({told}): PEM files are needed"
        ) from None
    return urllib.request.build_opener(_NotElsewhere, urllib.request.HTTPSHandler(context=context))


def _compiled(text: str, references: tuple[tuple[str, str], ...]) -> str:
    """Text of Protobuf's language as it would come serialized. Raises FormatError, NoCompiler."""
    from spillway.decode.formats import protobuf_schemas  # its library is an extra

    return protobuf_schemas.serialized(text, references)


class _NotElsewhere(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it would take the login along, whoever is there."""

    def redirect_request(self, *_: Any) -> None:
        """Leave the answer as it is, which is no registry's."""
