"""Scenarios: what `spillway produce` makes, read from TOML.

A scenario describes streams of messages over one *domain* of keys (symbols). What the papers
vary can be set: how fast rows arrive (constant or Poisson), how often a key appears (uniform,
Zipf, the b-model, or exactly R times in every K rows), which part of the keys is busy at a time,
and how many rows are malformed, late or repeated. The same scenario with the same seed is the
same messages in the same order in every topic partition.

Words of the papers: *tuple range* K and *range join ratio* R: a key of a class with ratio R
appears R times in every K rows of a stream (Liu, Zhu & Rundensteiner, SIGMOD 2006, 6.1). Of an
m-way join over n such ranges it gets (n R)^m results.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from spillway_schemas.exits import USAGE
from spillway_schemas.tomlfile import TomlError, TomlFile, parse_toml, read_toml
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


class Keys(Distribution):
    """The domain of keys, and how often each appears unless a stream says otherwise."""

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
    alternate: Alternate | None = None

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
        return self

    def class_keys(self) -> list[int]:
        """Keys of each class: share x K / R, at least one."""
        assert self.tuple_range is not None
        return [max(1, round(c.share * self.tuple_range / c.ratio)) for c in self.classes]


class StreamScenario(ScenarioPart):
    """One stream. Give two of `rows`, `duration_s`, `rate`, here or for the whole scenario."""

    kind: Literal["stock", "volume", "review"]
    """Which message it carries (schemas/spillway_schemas/messages.py)."""
    topic: Annotated[str, AfterValidator(topic_name)] | None = None
    """Its topic; the stream's name when not given."""
    rows: int | None = Field(default=None, ge=1)
    duration_s: float | None = Field(default=None, gt=0)
    rate: float | None = Field(default=None, gt=0)
    """Rows per second, on average."""
    arrival: Literal["constant", "poisson"] = "constant"
    keys: Distribution | None = None
    """How often each key appears in this stream, when it differs from the scenario's."""


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
    keys: Keys
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
        for name in self.streams:
            self.volume(name)
        return self

    def topic(self, stream: str) -> str:
        """The topic of a stream."""
        return self.streams[stream].topic or topic_name(stream)

    def distribution(self, stream: str) -> Distribution:
        """How often each key appears in a stream."""
        return self.streams[stream].keys or self.keys

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


def parse_scenario(text: str) -> Scenario:
    """A scenario from TOML text. Raises ScenarioError."""
    try:
        return _validated(parse_toml(text, Path("scenario")))
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
                text = "there is no such setting"
            lines.append(f"{file.where(place)}: {dotted}: {text}".replace(": : ", ": "))
        raise ScenarioError("\n".join(lines)) from None
