"""A Schema Registry on the loopback: what spillway asks of one, as Confluent's answers it.

Ids are of schemas, one for each text and kind, whatever subject gave it; a subject has versions.
Protobuf's schemas come as text of its language or as a serialized file, and are given serialized
only to who asks for `format=serialized`. Others get the text; of a schema that came serialized this
one has no more than a line. It takes any schema; real registries are in `tests/apicurio.py`.
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from spillway.decode.formats import protobuf_schemas

TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass
class StandIn:
    """What it holds, and how it misbehaves."""

    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    login: str = ""
    """`user:password` that it asks for."""
    faults: list[int | str] = field(default_factory=list)
    """What the next requests get: a status, `hang up`, or text that is no JSON."""
    serializes: bool | int | str = True
    """What who asks for `format=serialized` gets if not that: False: the text; or a status, or
    some other text."""
    away: bool = False
    """Every request gets 503."""
    asked: Counter[str] = field(default_factory=Counter)
    url: str = ""
    next_id: int = 1
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> StandIn:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def register(
        self,
        subject: str,
        text: str,
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
        schema_id: int | None = None,
    ) -> int:
        """Give a subject a version; the schema's id."""
        made = {"schema": text, "schemaType": kind, "references": references or []}
        found = next((n for n, each in self.schemas.items() if each == made), None)
        if found is None:
            found = schema_id if schema_id is not None else self.next_id
            self.next_id = max(self.next_id, found + 1)
            self.schemas[found] = made
        versions = self.subjects.setdefault(subject, [])
        if found not in versions:
            versions.append(found)
        return found

    def answer(
        self, method: str, target: str, body: bytes
    ) -> tuple[int, dict[str, Any] | list[Any]]:
        """Status and body."""
        parts = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(parts.query))
        path = [urllib.parse.unquote(each) for each in parts.path.strip("/").split("/")]
        match path:
            case ["schemas", "ids", number]:
                if int(number) not in self.schemas:
                    return 404, _error(40403, f"Schema {number} not found")
                return self._shown(int(number), query)
            case ["subjects"] if method == "GET":
                return 200, sorted(self.subjects)
            case ["subjects", subject, "versions"] if method == "POST":
                asked = json.loads(body)
                kind = asked.get("schemaType", "AVRO")
                number = self.register(subject, asked["schema"], kind, asked.get("references"))
                return 200, {"id": number}
            case ["subjects", subject, "versions"]:
                if subject not in self.subjects:
                    return 404, _error(40401, f"Subject '{subject}' not found.")
                return 200, list(range(1, len(self.subjects[subject]) + 1))
            case ["subjects", subject, "versions", version]:
                if subject not in self.subjects:
                    return 404, _error(40401, f"Subject '{subject}' not found.")
                held = self.subjects[subject]
                at = len(held) if version == "latest" else int(version)
                if not 0 < at <= len(held):
                    return 404, _error(40402, f"Version {version} not found.")
                status, shown = self._shown(held[at - 1], query)
                more = {"subject": subject, "version": at, "id": held[at - 1]}
                return status, shown | (more if status == 200 else {})
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _shown(self, number: int, query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        held = self.schemas[number]
        shown = {"schema": held["schema"]}
        if held["schemaType"] != "AVRO":
            shown["schemaType"] = held["schemaType"]
        if held["references"]:
            shown["references"] = held["references"]
        if held["schemaType"] == "PROTOBUF":
            is_text = "syntax" in held["schema"]
            if query.get("format") != "serialized":
                shown["schema"] = held["schema"] if is_text else 'syntax = "proto3";\n'
            elif isinstance(self.serializes, str):
                shown["schema"] = self.serializes
            elif self.serializes not in (True, False):
                return int(self.serializes), _error(self.serializes, "it cannot be serialized")
            elif self.serializes and is_text:
                shown["schema"] = protobuf_schemas.serialized(held["schema"], self._below(held))
        return 200, shown

    def _below(self, held: dict[str, Any]) -> list[tuple[str, str]]:
        """What a schema of Protobuf refers to, serialized, each behind what that refers to."""
        found: list[tuple[str, str]] = []
        for each in held["references"]:
            below = self.schemas[self.subjects[each["subject"]][each["version"] - 1]]
            under = self._below(below)
            found += [*under, (each["name"], protobuf_schemas.serialized(below["schema"], under))]
        return found


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


def _handler(registry: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _serve(self, method: str) -> None:
            registry.asked[self.path] += 1
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = registry.faults.pop(0) if registry.faults else 503 if registry.away else None
            if fault == "hang up":
                self.close_connection = True
                return
            given = self.headers.get("Authorization", "")
            wanted = "Basic " + base64.b64encode(registry.login.encode()).decode()
            status: int
            answer: Any
            if isinstance(fault, int):
                status, answer = fault, _error(fault, "a fault")
            elif isinstance(fault, str):
                status, answer = 200, fault
            elif registry.login and given != wanted:
                status, answer = 401, _error(401, "Unauthorized")
            else:
                status, answer = registry.answer(method, self.path, body)
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", TYPE)
            if status == 302:
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

    return Handler
