"""What ids have meant to a warehouse, for good.

A value is judged when it comes, again when lost state is restored, and again by `verify`. Between,
a registry may learn of an id, lose one, be made anew or be away. So what it said first is kept in
the warehouse and holds: a verdict is of the id and of Kafka's time of the message.

Model: of each id a list of files, `<id>-0.json`, `<id>-1.json`, ...; each says *absent until T*
(what Kafka has from T or before has no schema), also at single times after T, and the last one may
say the *schema* as well. Each says what those before it say, too, so whoever reads looks for the
newest, in a number of steps that grows with the logarithm of theirs, and reads that one alone. A
file appears whole and under a name that nobody had (`Folder.publish`), so all that read and write
agree on the list: whoever comes second reads what the first has said.

    message at t, list              verdict
    absent until T, t <= T          none, however the list goes on
    absent at t                     none, however the list goes on
    otherwise, with a schema        that schema
    otherwise                       the registry is asked; what it says is published first

T is never later than the time at which the registry was asked, by the clock of the process that
made this. A copy that goes to a worker keeps the time at which it went: a worker whose clock is a
day fast would otherwise reject a day of an id that is registered meanwhile. A message with a later
Kafka time was dated by a clock that is wrong or runs ahead. The verdict on it holds only for
messages of exactly its time: if T were moved up to it, one message dated 2100 would reject
everything until then. An id has at most `MOST_RUNS` runs of such times behind T. Where there would
be more, the new file also says *absent* of the smallest gaps between them.

Invariants:

* A verdict never changes: *absent* is published for messages that no file said anything of, before
  any was judged by a schema, and nothing behind a schema.
* A schema's id is asked for once in the warehouse's life, not once a worker. What stays in a
  process is what files say, and only a cache.
* A registry that does not answer gives no verdict: nothing is published.

Known limitations: the list is of ids, whatever registry gave them. A registry made anew that gives
old ids new schemas is noticed by `doctor`, and needs a warehouse of its own. And an id that the
registry does not know costs a question and a file in each batch that has a later message of it, so
a topic of random bytes that begin with a zero is read slowly.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from spillway.registry.client import DamagedSchema, NotThere, RegistryClient
from spillway.storage import Folder
from spillway_schemas.formats import Absence, Resolved, WriterSchema

FOLDER = "schemas"

MOST_RUNS = 1_000
"""Of single times at which an id is absent: all of them are held, and read, at once."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _then(ms: int) -> int:
    """The time that a copy took along."""
    return ms


class KnownSchemas:
    """What ids mean. Picklable."""

    def __init__(
        self,
        client: RegistryClient,
        place: Folder | None,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        """`place`: where it is kept; None: in this process."""
        self._client = client
        self._place = place
        self._now_ms = now_ms
        self._cached: dict[int, _Said] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what this process has read, and with its time."""
        return {**self.__dict__, "_cached": {}, "_now_ms": partial(_then, self._now_ms())}

    def resolve(self, schema_id: int, kafka_ms: npt.NDArray[np.int64]) -> Resolved:
        """What an id means: see `Writers`. Raises RegistryUnavailable, RegistryRefuses,
        DamagedSchema."""
        said = self._read(schema_id)
        while not said.says_of(kafka_ms):
            unsaid = kafka_ms[~said.absence.covers(kafka_ms)]
            said = self._published(schema_id, self._asked(schema_id, said, unsaid))
        self._cached[schema_id] = said
        return Resolved(said.schema, said.absence, said.why)

    def kept(self) -> list[WriterSchema]:
        """All schemas that are kept, by their ids. Raises DamagedSchema."""
        if self._place is None:
            return []
        ids = {int(name.partition("-")[0]) for name in self._place.names() if _is_ours(name)}
        found = (self._read(each).schema for each in sorted(ids))
        return [each for each in found if each is not None]

    def _read(self, schema_id: int) -> _Said:
        said = self._cached.get(schema_id, _Said())
        if self._place is None or said.schema is not None:
            return said
        # As if there were one more: most ids have one file, read at the second request then.
        files = self._files(schema_id, said.files + 1)
        name = _name(schema_id, files - 1)
        try:
            data = self._place.read(name)
        except FileNotFoundError:
            return said
        return _Said.of(files, _decoded(data, name, self._place))

    def _files(self, schema_id: int, known: int) -> int:
        """How many files an id has, at least `known`."""

        def is_there(number: int) -> bool:
            assert self._place is not None
            return self._place.size(_name(schema_id, number)) is not None

        files, step = known, 1
        while is_there(files + step - 1):
            files, step = files + step, step * 2
        while step > 1:
            step //= 2
            if is_there(files + step - 1):
                files += step
        return files

    def _asked(self, schema_id: int, said: _Said, kafka_ms: npt.NDArray[np.int64]) -> _Said:
        """What the next file says. `said`: by the files before."""
        # Read before the registry is asked: what comes while it answers may have a schema.
        now_ms = self._now_ms()
        try:
            schema = self._client.schema(schema_id)
        except NotThere as error:
            # Later messages are asked for again: the id may have been given by then.
            kept = self._place is not None
            absent = Absence.of(now_ms, kafka_ms) if kept else Absence(int(kafka_ms.max()))
            absence = (said.absence | absent).within(MOST_RUNS)
            return _Said(said.files + 1, absence, str(error))
        return replace(said, files=said.files + 1, schema=schema)

    def _published(self, schema_id: int, said: _Said) -> _Said:
        """What is said now: that, unless somebody has published another before."""
        if self._place is None:
            return said
        name = _name(schema_id, said.files - 1)
        try:
            self._place.publish(name, _encoded(said.content()))
        except FileExistsError:
            return self._read(schema_id)
        self._place.sync([name])
        return said


@dataclass(frozen=True)
class _Said:
    """What the newest file of an id says, and so all of them."""

    files: int = 0
    absence: Absence = field(default_factory=Absence)
    why: str = ""
    schema: WriterSchema | None = None

    @classmethod
    def of(cls, files: int, content: dict[str, Any]) -> _Said:
        """By the content of the last of so many files."""
        ahead = tuple((first, last) for first, last in content["absent_at_ms"])
        absence = Absence(content["absent_until_ms"], ahead)
        if (found := content.get("schema")) is None:
            return cls(files, absence, content["why"])
        references = tuple((name, text) for name, text in found["references"])
        schema = WriterSchema(found["id"], found["kind"], found["text"], references)
        return cls(files, absence, content["why"], schema)

    def content(self) -> dict[str, Any]:
        """Of the file that says this."""
        return {
            "absent_until_ms": self.absence.until_ms,
            "absent_at_ms": self.absence.ahead_ms,
            "why": self.why,
            **({} if self.schema is None else {"schema": asdict(self.schema)}),
        }

    def says_of(self, kafka_ms: npt.NDArray[np.int64]) -> bool:
        """Whether it is known what messages from these times mean."""
        return self.schema is not None or bool(self.absence.covers(kafka_ms).all())


def _name(schema_id: int, number: int) -> str:
    return f"{schema_id}-{number}.json"


def _encoded(content: dict[str, Any]) -> bytes:
    text = json.dumps(content)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "said": text}).encode()


def _decoded(data: bytes, name: str, place: Folder) -> dict[str, Any]:
    try:
        outer = json.loads(data)
        text = outer["said"]
        if hashlib.sha256(text.encode()).hexdigest() == outer["sha256"]:
            found: dict[str, Any] = json.loads(text)
            return found
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise DamagedSchema(
        f"{place.path(name)} is damaged: what schema {name.partition('-')[0]} means is not known. "
        "Bring the file back from a backup. Without one, remove it where it held a schema: the "
        "registry is asked again, and ids never change their schemas"
    )


def _is_ours(name: str) -> bool:
    first, dash, rest = name.partition("-")
    return bool(dash) and first.isdigit() and rest.endswith(".json")
