"""Scenarios: what `spillway produce` makes, read from TOML.

A scenario describes streams of messages over one *domain* of keys (symbols). What the papers
vary can be set: how fast rows arrive (constant or Poisson), how often a key appears (uniform,
Zipf, the b-model, or exactly R times in every K rows), which part of the keys is busy at a time,
and how many rows are malformed, late or repeated. The same scenario with the same seed is the
same messages in the same order in every topic partition.

A stream has a shipped contract (`kind`), or fields of its own (`fields`). Of these each is a key of
a domain, or made up::

    [domains.account]                # beside `keys`, which is the domain `keys`
    count = 2_000

    [streams.orders]
    fields = { number = "order.id", account = "account.id", at = "time", amount = "price" }
    draws = { order = { distribution = "tuple-range" } }     # each once

`DOMAIN.symbol` is a key's text and `DOMAIN.id` its number; two fields of one domain are of the same
key. `time` is when the row arrives, `price` a decimal, `size` a whole number, `words` a text.

Words of the papers: *tuple range* K and *range join ratio* R: a key of a class with ratio R
appears R times in every K rows of a stream (Liu, Zhu & Rundensteiner, SIGMOD 2006, 6.1). Of an
m-way join over n such ranges it gets (n R)^m results. In a tree, a join's ratio is that of the
domain of its keys; its average join ratio is the average over the partition groups.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from spillway_schemas.exits import USAGE
from spillway_schemas.messages import NAME
from spillway_schemas.tomlfile import TomlError, TomlFile, read_toml
from spillway_schemas.topic_name import topic_name

MalformedKind = Literal[
    "not-json",
    "empty",
    "tombstone",
    "wrong-type",
    "missing-field",
    "null-key",
    "not-finite",
    "too-big",
    "bad-utf8",
    "no-offset",
]
"""Ways in which a message can break its contract."""

MAX_KEYS = 5_000_000
GROUPS = 512
"""Partition groups that classes of keys are laid out over: the default of `state.groups`."""
KEYS = "keys"
"""The domain that a scenario's `keys` are to the fields of streams."""
FACES = ("symbol", "id")
"""What a field may be of a key: its text, or its number."""
MADE_UP = ("time", "price", "size", "words")
"""What else a field may be."""


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class ScenarioError(ValueError):
    """A scenario that cannot be used: one line for each problem, with file and line."""

    exit_code = USAGE


class ScenarioPart(BaseModel):
    """Base of a scenario's parts: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class KeyClass(ScenarioPart):
    """Keys that appear equally often: `ratio` times in every tuple range."""

    share: float = Field(gt=0, le=1)
    """The class's share of the rows, and of the partition groups (hash ranges)."""
    ratio: int = Field(ge=1)
    """Range join ratio R."""


class Distribution(ScenarioPart):
    """How often each key of the domain appears in one stream."""

    distribution: Literal["uniform", "zipf", "b-model", "tuple-range"] = "uniform"
    exponent: float = Field(default=1.0, ge=0)
    """zipf: the key of rank r has weight 1 / r^exponent."""
    bias: float = Field(default=0.7, ge=0.5, lt=1)
    """b-model: of every halving of the domain one half gets this share (0.7: the papers')."""


class Alternate(ScenarioPart):
    """One part of the hash range is busier than the others; every so often the next one is."""

    every_s: float = Field(gt=0)
    factor: float = Field(default=10.0, ge=1)
    """How many times more rows the busy part gets than each other one."""
    ranges: int = Field(default=2, ge=2, le=64)
    """Equal parts of the hash range, as slots divide it."""


def _symbol(name: str) -> str:
    if not 0 < len(name) <= 64 or not set(name) <= _PLAIN:
        raise ValueError("a symbol has letters, digits, '.', '_' and '-', at most 64")
    return name


class KeyDomain(Distribution):
    """A domain of keys, and how often each appears unless a stream says otherwise.

    A key has a text (`symbol`) and a number (`id`, from 1 on).
    """

    count: int | None = Field(default=None, ge=1, le=MAX_KEYS)
    """Number of keys; with `tuple_range` it follows from the classes."""
    names: list[Annotated[str, AfterValidator(_symbol)]] = []
    """The symbols themselves; generated ones of letters when not given."""
    tuple_range: int | None = Field(default=None, ge=1)
    """K: every key of a class appears `ratio` times in every so many rows."""
    classes: list[KeyClass] = []
    layout: Literal["spread", "contiguous"] = "spread"
    """Where the classes' groups lie: mixed over all hashes, or one class after the other (then
    different slots, and hosts, get different classes)."""
    groups: int = Field(default=GROUPS, ge=1, le=1 << 16)
    """Partition groups that the classes are laid out over, a power of two."""
    hashed: Literal["symbol", "id"] = "symbol"
    """What joins are on, and so what the groups are of."""

    @model_validator(mode="before")
    @classmethod
    def _classes_mean_tuple_range(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("classes"):
            return {"distribution": "tuple-range", **data}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.distribution == "tuple-range" or self.tuple_range or self.classes:
            if not self.tuple_range or not self.classes:
                raise ValueError("tuple_range and one or more [[keys.classes]] belong together")
            if self.count is not None or self.names:
                raise ValueError(
                    "the keys follow from tuple_range and the classes: leave out count and names"
                )
            if abs(sum(c.share for c in self.classes) - 1) > 0.01:
                raise ValueError("the shares of [[keys.classes]] must add up to 1")
        elif (self.count is None) == (not self.names):
            raise ValueError("count (the number of keys) is needed, or their names")
        if len(set(self.names)) != len(self.names):
            raise ValueError("names: a symbol is named twice")
        if self.groups & (self.groups - 1):
            raise ValueError(f"groups must be a power of two, not {self.groups}")
        return self

    def class_keys(self) -> list[int]:
        """Keys of each class: share x K / R, at least one."""
        assert self.tuple_range is not None
        return [max(1, round(c.share * self.tuple_range / c.ratio)) for c in self.classes]


class Keys(KeyDomain):
    """The scenario's own domain, of which one part may be busier than the others."""

    alternate: Alternate | None = None


class StreamScenario(ScenarioPart):
    """One stream. Give two of `rows`, `duration_s`, `rate`, here or for the whole scenario."""

    kind: Literal["stock", "volume", "review"] | None = None
    """Which message it carries (schemas/spillway_schemas/messages.py); or `fields`."""
    fields: dict[str, str] = {}
    """By name what each field is: `DOMAIN.symbol`, `DOMAIN.id`, or one of `MADE_UP`. The first of a
    domain is the Kafka key, too."""
    topic: Annotated[str, AfterValidator(topic_name)] | None = None
    """Its topic; the stream's name when not given."""
    rows: int | None = Field(default=None, ge=1)
    duration_s: float | None = Field(default=None, gt=0)
    rate: float | None = Field(default=None, gt=0)
    """Rows per second, on average."""
    arrival: Literal["constant", "poisson"] = "constant"
    keys: Distribution | None = None
    """How often each key appears in this stream, when it differs from the scenario's."""
    draws: dict[str, Distribution] = {}
    """The same for a domain of its fields, by the domain's name."""

    @model_validator(mode="after")
    def _one_contract(self) -> Self:
        if (self.kind is None) == (not self.fields):
            raise ValueError("give either kind (a shipped contract) or fields (its own)")
        if self.kind is not None and self.draws:
            raise ValueError("draws are for fields: with a kind give keys")
        if self.kind is None and self.keys is not None:
            raise ValueError("keys are for a kind: with fields give draws, by domain")
        for name, text in self.fields.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a field: use letters, digits, _")
            if text not in MADE_UP and text.partition(".")[2] not in FACES:
                raise ValueError(
                    f"fields.{name}: {text!r} is nothing that a field may be: DOMAIN.symbol, "
                    f"DOMAIN.id, {', '.join(MADE_UP)}"
                )
        if self.fields and not self.domains:
            raise ValueError("one of the fields is of a domain: it is the Kafka key")
        for name in self.draws:
            if name not in self.domains:
                raise ValueError(f"draws.{name}: no field is of the domain {name}")
        return self

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that its keys come from; the first is that of the Kafka key."""
        if self.kind is not None:
            return (KEYS,)
        found = (text.partition(".")[0] for text in self.fields.values() if text not in MADE_UP)
        return tuple(dict.fromkeys(found))


class Late(ScenarioPart):
    """Rows whose `ts` lies before their arrival."""

    share: float = Field(ge=0, le=1)
    by_s: float = Field(gt=0)
    """Late by up to this, uniformly."""


class Repeated(ScenarioPart):
    """Rows that are sent again, byte for byte: different rows to a join."""

    share: float = Field(ge=0, lt=1)


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a time with its offset is needed, e.g. 2026-01-05T14:30:00Z")
    return value.astimezone(UTC)


class Scenario(ScenarioPart):
    """A scenario as it is written."""

    description: str = ""
    seed: int = Field(default=0, ge=0)
    start: Annotated[datetime, AfterValidator(_utc)] = datetime(2026, 1, 5, 14, 30, tzinfo=UTC)
    """The `ts` at which every stream begins."""
    partitions: int = Field(default=4, ge=1, le=1000)
    """Partitions of each topic, where it does not exist yet."""
    rows: int | None = Field(default=None, ge=1)
    duration_s: float | None = Field(default=None, gt=0)
    rate: float | None = Field(default=None, gt=0)
    keys: Keys | None = None
    """The domain of the streams that have a `kind`."""
    domains: dict[str, KeyDomain] = {}
    """More domains, for the fields of the other streams."""
    malformed: dict[MalformedKind, float] = {}
    """Share of the rows that are malformed, by kind."""
    late: Late | None = None
    repeated: Repeated | None = None
    streams: dict[str, StreamScenario] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sum(self.malformed.values()) > 1 or min(self.malformed.values(), default=0) < 0:
            raise ValueError("malformed: shares lie between 0 and 1, together too")
        topics = [self.topic(name) for name in self.streams]
        if len(set(topics)) != len(topics):
            raise ValueError("two streams have one topic")
        if KEYS in self.domains:
            raise ValueError(f"domains.{KEYS}: the domain of that name is [{KEYS}]")
        for name, stream in self.streams.items():
            self.volume(name)
            for each in stream.domains:
                if each == KEYS and self.keys is None:
                    raise ValueError(f"streams.{name}: keys are needed, [{KEYS}]")
                if each != KEYS and each not in self.domains:
                    known = ", ".join(([KEYS] if self.keys else []) + [*self.domains])
                    raise ValueError(
                        f"streams.{name}: there is no domain {each!r}; there are: {known}"
                    )
            self._can_be_broken(name)
        return self

    def _can_be_broken(self, name: str) -> None:
        """Raises ValueError for a kind of malformed rows that a stream's fields do not allow."""
        values = self.streams[name].fields.values()
        lacks = {
            "no-offset": "time" not in values,
            **dict.fromkeys(
                ("wrong-type", "not-finite", "too-big"), not {"price", "size"} & set(values)
            ),
        }
        for kind in self.malformed if values else ():
            if lacks.get(kind):
                what = "a time" if kind == "no-offset" else "a price or a size"
                raise ValueError(f"malformed.{kind}: no field of streams.{name} is {what}")

    def topic(self, stream: str) -> str:
        """The topic of a stream."""
        return self.streams[stream].topic or topic_name(stream)

    def domain(self, name: str) -> KeyDomain:
        """A domain by its name. Raises KeyError."""
        if name == KEYS and self.keys is not None:
            return self.keys
        return self.domains[name]

    def distribution(self, stream: str, domain: str = KEYS) -> Distribution:
        """How often each key of a domain appears in a stream. Raises KeyError."""
        plan = self.streams[stream]
        return plan.draws.get(domain) or plan.keys or self.domain(domain)

    def volume(self, stream: str) -> StreamVolume:
        """Rows and rate of a stream. Raises ValueError when they do not follow."""
        plan = self.streams[stream]
        own = (plan.rows, plan.duration_s, plan.rate)
        common = (self.rows, self.duration_s, self.rate)
        rows, duration, rate = (a if a is not None else b for a, b in zip(own, common, strict=True))
        given = [v is not None for v in (rows, duration, rate)]
        if sum(given) == 3 and sum(v is not None for v in own) == 2:
            # What the stream says itself counts; the scenario's third value does not.
            rows, duration, rate = own
        elif sum(given) != 2:
            raise ValueError(
                f"streams.{stream}: exactly two of rows, duration_s and rate are needed "
                "(of the stream and the scenario together)"
            )
        paced = rate is not None
        if rate is None:
            assert rows is not None
            assert duration is not None
            rate = rows / duration
        return StreamVolume(rows=rows, duration_s=duration, rate=rate, paced=paced)


class StreamVolume(ScenarioPart):
    """How much a stream carries: `rows`, or as many as arrive within `duration_s`."""

    rows: int | None
    duration_s: float | None
    rate: float
    paced: bool
    """A rate was asked for, so it is kept in real time unless told otherwise."""


def shipped() -> list[str]:
    """Names of the scenarios that come with spillway."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load_scenario(name: str) -> Scenario:
    """A shipped scenario by its name, or the TOML file of that path. Raises ScenarioError."""
    path = Path(name)
    if not name.endswith(".toml"):
        path = _folder() / f"{name}.toml"
        if not path.is_file():
            raise ScenarioError(
                f"no scenario {name!r}; shipped are {', '.join(shipped())}; "
                "a scenario of your own is named by the path of its .toml file"
            )
    try:
        return _validated(read_toml(path))
    except TomlError as error:
        raise ScenarioError(str(error)) from None


def _folder() -> Path:
    return Path(__file__).parent / "scenarios"


def _validated(file: TomlFile) -> Scenario:
    data: dict[str, Any] = file.data
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False):
            place = tuple(item["loc"])
            dotted = ".".join(str(part) for part in place)
            text = item["msg"].removeprefix("Value error, ")
            if item["type"] == "extra_forbidden":
                text = "there is no such key"
            elif item["type"] == "missing":
                text = "missing"
            lines.append(f"{file.where(place)}: {dotted}: {text}".replace(": : ", ": "))
        raise ScenarioError("\n".join(lines)) from None
