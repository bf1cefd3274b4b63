"""Every setting of spillway, with its unit and the reason for its default.

The model is the documentation: `json_schema_extra` of each field holds `unit` and `why`, and
`spillway_schemas.settings.catalogue` turns them into the settings page. `spillway_schemas.settings`
loads it. Only settings that do something are listed; what later work needs comes with that work.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from spillway_schemas.memory import most_memory
from spillway_schemas.secret import hide_before_at
from spillway_schemas.stores import PROVIDERS, SPANS, is_uri, option_problem, span_s, store_location

ENV_PREFIX = "SPILLWAY_"
ENV_DELIMITER = "__"

GIB = 1 << 30

# ------------------------------------------------------------------------------------ values

RESERVED_KAFKA_OPTIONS: dict[str, str] = {
    "bootstrap.servers": "use kafka.bootstrap_servers",
    "group.id": "offsets are kept in the journal, not in a consumer group",
    "auto.offset.reset": "use stream.start",
    "enable.auto.commit": "offsets are kept in the journal",
    "isolation.level": "only committed messages are ever read",
    "allow.auto.create.topics": "spillway makes topics only where you say --create",
    "transactional.id": "each producer has its own",
    "enable.idempotence": "every producer is idempotent",
    "key.deserializer": "values are read as bytes",
    "value.deserializer": "values are read as bytes",
    "key.serializer": "values are written as bytes",
    "value.serializer": "values are written as bytes",
    "interceptor.classes": "Spark refuses interceptors: they could change what was read",
}
"""Client options that spillway sets itself or that Spark refuses, each with the reason or what to
do."""


def flat_options(value: object) -> object:
    """Kafka's names hold dots, which TOML takes for tables when unquoted: join them again."""
    if not isinstance(value, Mapping):
        return value
    flat: dict[str, object] = {}
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            below = flat_options(inner)
            assert isinstance(below, dict)
            flat |= {f"{name}.{rest}": item for rest, item in below.items()}
        elif isinstance(inner, bool):
            flat[str(name)] = "true" if inner else "false"
        elif isinstance(inner, int | float):
            flat[str(name)] = str(inner)
        else:
            flat[str(name)] = inner
    return flat


def _client_options(options: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in options:
        if name in RESERVED_KAFKA_OPTIONS:
            raise ValueError(f"{name} cannot be set here: {RESERVED_KAFKA_OPTIONS[name]}")
        if not re.fullmatch(r"[a-z0-9]+(\.[a-z0-9]+)*", name):
            raise ValueError(
                f"{name!r} is no name of the Java client: they are written like fetch.max.wait.ms"
            )
    return options


def _is_place(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(re.fullmatch(r"[^\s/@]+", host)) and port.isdecimal() and 0 < int(port) < 65536


def _servers(value: str) -> str:
    _refuse_credentials(value)
    servers = [server.strip() for server in value.split(",")]
    for server in servers:
        if not _is_place(server):
            raise ValueError(f"{server!r} is not host:port (several: separated by commas)")
    return ",".join(servers)


def _refuse_credentials(servers: str) -> None:
    """They are not repeated: where one ends and the next begins is not known."""
    if "@" in servers:
        raise ValueError(
            "host:port is needed, without what is before the @: a login belongs in kafka.options"
        )


REGISTRY_OPTIONS = (
    "basic.auth.user.info",
    "bearer.auth.token",
    "ssl.truststore.location",
    "ssl.keystore.location",
    "ssl.key.password",
)
"""Options of the registry's client."""


def _registry(value: str) -> str:
    urls = [each.strip() for each in value.split(",") if each.strip()]
    for url in urls:
        if "@" in url:
            raise ValueError(
                "an address is needed, without what is before the @: a login belongs in "
                "registry.options, basic.auth.user.info"
            )
        if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url):
            raise ValueError(f"{url!r} is no address such as http://registry:8081; empty: none")
    return ",".join(urls)


def _registry_options(options: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in options:
        if name not in REGISTRY_OPTIONS:
            raise ValueError(
                f"{name!r} is no option of the registry's; allowed: {', '.join(REGISTRY_OPTIONS)}"
            )
    return options


def _listener(value: str) -> str:
    place = value.strip()
    if place and ("," in place or not _is_place(place)):
        told = hide_before_at(place)
        raise ValueError(f"{told!r} is not host:port, such as 127.0.0.1:9464; empty: off")
    return place


_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+")


def _master(value: str) -> str:
    if _MASTER.fullmatch(value.strip()) is None:
        raise ValueError(
            "one of local[*], local[cores], local-cluster[n,cores,MiB], spark://host:port, yarn, "
            "k8s://..."
        )
    return value.strip()


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        below = 1 << (value.bit_length() - 1)
        raise ValueError(f"a power of two is needed, e.g. {below} or {2 * below}")
    return value


def _sample(value: int) -> int:
    if value == 1:
        raise ValueError("0 counts all, and a sample needs 2 rows or more (got 1)")
    return value


def _shares(value: str) -> str:
    if value == "even":
        return value
    try:
        if all(0 < float(share) < float("inf") for share in value.split(",")):
            return value
    except ValueError:
        pass
    raise ValueError("even, or a positive number for each slot, separated by commas: 3,1")


def _rows(value: str) -> str:
    for each in filter(None, map(str.strip, value.split(","))):
        name, equals, rows = each.partition("=")
        try:
            right = bool(equals and name and 0 <= float(rows) < float("inf"))
        except ValueError:
            right = False
        if not right:
            raise ValueError("joins with a number each, separated by commas: abc=3,abcd=0.5")
    return value


def _start(value: str) -> str:
    if value in ("previous-close", "earliest", "latest"):
        return value
    try:
        if datetime.fromisoformat(value).tzinfo is not None:
            return value
    except ValueError:
        pass
    raise ValueError(
        "one of previous-close, earliest, latest, or a time with its offset "
        "such as 2026-01-05T09:30:00-05:00"
    )


_STORES = ", ".join(f"{each}://" for each in PROVIDERS)


def _location(
    value: str,
    *,
    otherwise: str = "a local path is needed; only warehouse.root may be in an object store "
    f"({_STORES})",
) -> str:
    if not value.strip():
        raise ValueError("an empty path; give a folder")
    scheme, colon, rest = value.strip().partition(":")
    if colon and "/" not in scheme and "@" in _may_be_secret(scheme, rest):
        raise ValueError("credentials do not belong in a path: leave out what is before the @")
    if rest.startswith("//") and scheme != "file":
        raise ValueError(otherwise)
    return value.removeprefix("file://") if value.startswith("file:///") else value


def _may_be_secret(scheme: str, rest: str) -> str:
    """What credentials may stand in: a secret can hold a slash, the name of a folder an @."""
    return rest.removeprefix("//").partition("/")[0] if scheme == "file" else rest


Location = Annotated[str, AfterValidator(_location)]
"""A local path, as such or as a `file:` URI."""


def _root(value: str) -> str:
    if not is_uri(value.strip()):
        return _location(
            value,
            otherwise=f"write a folder, or a place in an object store that begins with {_STORES}",
        )
    if ":" in value.partition("://")[2].rpartition("@")[0]:
        raise ValueError("credentials belong in warehouse.options: leave out what is before the @")
    return store_location(value.strip()).uri


def _store_options(options: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name, value in options.items():
        if problem := option_problem(name):
            raise ValueError(problem)
        if name in SPANS:
            try:
                span_s(value.get_secret_value())
            except ValueError:
                raise ValueError(f"{name}: write a length of time such as 30s or 2min") from None
    return options


def _state_root() -> str:
    shared = Path("/dev/shm")
    usable = shared.is_dir() and os.access(shared, os.W_OK)
    # A name of one's own: the folder is everybody's, and a shared name would be the first comer's.
    return str(shared / f"spillway-{os.geteuid()}") if usable else "var/state"


def own_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _budget_bytes(data: dict[str, Any]) -> int:
    """1 GiB a slot, or less where all slots together would take over a quarter of memory."""
    memory = most_memory()
    slots = int(data.get("slots") or 1)
    return max(64 << 20, min(GIB, memory // 4 // slots) // (1 << 20) * (1 << 20))


def _about(unit: str, why: str) -> dict[str, Any]:
    return {"unit": unit, "why": why}


class Section(BaseModel):
    """Base of the sections: immutable, unknown keys refused, defaults checked like values."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )


# ---------------------------------------------------------------------------------- sections


class KafkaSettings(Section):
    """The broker that the topics live on."""

    bootstrap_servers: Annotated[str, AfterValidator(_servers)] = Field(
        default="127.0.0.1:19092",
        description="Brokers to connect to, host:port, several separated by commas.",
        json_schema_extra=_about(
            "host:port", "The embedded broker listens there; not 9092, which may be taken."
        ),
    )
    data_dir: Location = Field(
        default="var/kafka",
        description="Folder of the embedded broker: its log, configuration and process id.",
        json_schema_extra=_about("path", "Inside the project, so that removing var/ resets it."),
    )
    partitions: int = Field(
        default=6,
        ge=1,
        le=10_000,
        description="Partitions of a topic that `spillway topics --create` makes.",
        json_schema_extra=_about(
            "partitions",
            "They are read in parallel: a few for each core of a small machine. A topic that "
            "exists keeps its own number.",
        ),
    )
    replication: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Brokers that hold each partition of a topic that `spillway topics --create` "
        "makes.",
        json_schema_extra=_about(
            "brokers", "The embedded broker is alone; on a cluster of your own take 3."
        ),
    )
    options: Annotated[
        dict[str, SecretStr], BeforeValidator(flat_options), AfterValidator(_client_options)
    ] = Field(
        default={},
        description=(
            "Client options by their Java names (`security.protocol`, `sasl.mechanism`, ...); "
            "given to Spark as they are, translated for kafka-python. Those that spillway sets "
            "itself (`isolation.level`, `group.id`, ...) are refused. No value is ever shown but "
            "of names that are known to be harmless."
        ),
        json_schema_extra=_about("table", "None are needed for the embedded broker."),
    )


class RegistrySettings(Section):
    """The Schema Registry, for streams whose values begin with the id of their schema."""

    url: Annotated[str, AfterValidator(_registry)] = Field(
        default="",
        description="Where the registry answers; several of one cluster are separated by commas. "
        "Empty: there is none.",
        json_schema_extra=_about(
            "http://host:port", "None is needed for JSON, and none for schemas in files."
        ),
    )
    wait_s: float = Field(
        default=60.0,
        ge=0,
        description="How long a registry that does not answer is asked again before an attempt at "
        "the epoch fails.",
        json_schema_extra=_about(
            "seconds",
            "A restart of a registry takes less. The stream makes several attempts, and says so.",
        ),
    )
    options: Annotated[
        dict[str, SecretStr], BeforeValidator(flat_options), AfterValidator(_registry_options)
    ] = Field(
        default={},
        description=(
            "Options of the registry's client, by Confluent's names: `basic.auth.user.info` "
            "(`user:password`), `bearer.auth.token`, `ssl.truststore.location`, "
            "`ssl.keystore.location` (PEM both), `ssl.key.password`."
        ),
        json_schema_extra=_about("table", "A registry on a trusted network asks for no login."),
    )


class WarehouseSettings(Section):
    """Where the Delta tables live."""

    root: Annotated[str, AfterValidator(_root)] = Field(
        default="var/warehouse",
        description="Folder of all tables: results, spill, quarantine, journal and the others. A "
        "path, or a place in an object store: `s3://bucket/folder`, `gs://bucket/folder`, "
        "`abfss://container@account.dfs.core.windows.net/folder`.",
        json_schema_extra=_about("path", "Inside the project, so that a first run needs no setup."),
    )
    options: Annotated[
        dict[str, SecretStr], BeforeValidator(flat_options), AfterValidator(_store_options)
    ] = Field(
        default={},
        description=(
            "Options of the object store by delta-rs's names: `aws_...`, `google_...`, `azure_...` "
            "of the provider, and of the connection, without a prefix, `timeout` (30s: one "
            "answer), `retry_timeout` (60s: all attempts at a request), `connect_timeout` (5s), "
            "`allow_http`, `proxy_url` "
            "and others. No value is ever shown but of names that are known to be harmless."
        ),
        json_schema_extra=_about(
            "table",
            "None are needed for a local folder, nor where the provider's own variables "
            "(`AWS_ACCESS_KEY_ID`, ...) or a role of the machine or the pod say who this is.",
        ),
    )
    fsync: bool = Field(
        default=True,
        description="Force files and folders to disk before the commit that names them.",
        json_schema_extra=_about(
            "true/false",
            "Without it a power loss can take files that the journal says exist. It costs "
            "milliseconds an epoch; turn it off for tests and on disks that are memory. An object "
            "store needs none.",
        ),
    )


class StateSettings(Section):
    """The join's state in memory."""

    root: Location = Field(
        default_factory=_state_root,
        description="Folder of the state files on every host; one warehouse uses a part of it. "
        "It is this user's alone (0700); a link and a folder of somebody else are refused.",
        json_schema_extra=_about(
            "path",
            "/dev/shm is memory that outlives Spark's Python workers, so a task finds the state "
            "again. Where it does not exist var/state is used; an NVMe path works too.",
        ),
    )
    groups: Annotated[int, AfterValidator(_power_of_two)] = Field(
        default=512,
        ge=1,
        le=1 << 16,
        description="Partition groups per operator when a warehouse is made; a power of two.",
        json_schema_extra=_about(
            "groups",
            "TR-05-04 and SIGMOD'06 use 300 to 500: enough to spill in small steps and to tell "
            "productive keys from others, few enough for statistics of each every epoch.",
        ),
    )
    slots: int = Field(
        default_factory=own_cores,
        ge=1,
        le=1024,
        description="Shares of the join that work at the same time, each with its own memory. "
        "Read when a warehouse is made; the journal keeps it from then on.",
        json_schema_extra=_about(
            "slots",
            "One per core: an epoch costs about 50 ms of a core for every slot even when it is "
            "empty, so more slots than cores only wait for each other.",
        ),
    )
    shares: Annotated[str, AfterValidator(_shares)] = Field(
        default="even",
        description=(
            "The slots' shares of the groups when a warehouse is made: `even`, or a number for "
            "each slot, such as `3,1`."
        ),
        json_schema_extra=_about(
            "even, or numbers",
            "Uneven starts are for experiments (the papers have them) and for slots of unlike "
            "hosts.",
        ),
    )
    budget_bytes: ByteSize = Field(
        default_factory=lambda data: ByteSize(_budget_bytes(data)),
        ge=1,
        description="Memory for the state files of one slot; also written as `512MiB`, `2GiB`.",
        json_schema_extra=_about(
            "bytes",
            "1 GiB holds about 18 million rows of the shipped streams (60 bytes a row). Less "
            "where all slots together would take more than a quarter of the machine's memory: "
            "/dev/shm usually ends at a half, and Spark needs its own. A budget that cannot hold "
            "one epoch (102 KiB with the shipped query, 512 groups and 2 slots) is refused by "
            "`doctor` and `stream`, with the least that would do.",
        ),
    )


class PlanSettings(Section):
    """Which join of a query begins on which slots. Read when a warehouse is made, and of no effect
    where the query is a single join."""

    distribution: Literal["all", "random", "balanced-network-aware"] = Field(
        default="all",
        description="Slots that have groups of a join: all of them, some by chance, or those of "
        "its sub-plan.",
        json_schema_extra=_about(
            "rule",
            "With groups on all slots each has the same work, whatever a join gives. The others "
            "are DAX's (slide 6): `random` gives each slot as many joins as others; "
            "`balanced-network-aware` has joins that exchange most rows share slots, and fewer "
            "slots exchange rows.",
        ),
    )
    seed: int = Field(
        default=0,
        ge=0,
        description="What `random` draws with: the same seed, the same slots.",
        json_schema_extra=_about("number", "Any; experiments take several."),
    )
    rows: Annotated[str, AfterValidator(_rows)] = Field(
        default="",
        description=(
            "Rows that joins are expected to give where each stream gives one, as `abc=3,abcd=0.5`;"
            " `balanced-network-aware` goes by them."
        ),
        json_schema_extra=_about(
            "join=number, ...",
            "Before there are rows nobody knows. A join that is not named is taken to give as many "
            "rows as come to it.",
        ),
    )
    most_load: float = Field(
        default=1.25,
        ge=1,
        description=(
            "`balanced-network-aware` gives a slot at most this many times the average of the "
            "expected load, where that can be."
        ),
        json_schema_extra=_about(
            "ratio",
            "The slides give no figure. It compares with the average, rebalance.theta_d compares "
            "two slots: at 1.25 one of two slots may have 0.6 of the load of the other, and the "
            "policy `balance` then moves groups at run time.",
        ),
    )


Share = Annotated[float, Field(gt=0, le=1)]
"""A part of a whole, above 0."""


class SpillSettings(Section):
    """What leaves memory when a slot's budget is nearly used."""

    threshold: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="Part of the budget in use at which a slot spills (theta_m).",
        json_schema_extra=_about(
            "fraction of state.budget_bytes",
            "The rest is room for an epoch's rows and for merging. With less of it epochs get "
            "smaller; with more, state leaves earlier than it must. With budgets of a few MiB "
            "spills begin somewhat earlier (decision 15). A share, as the papers' rule (M_u / M_a "
            "> theta_m); their experiments have 60 to 200 MB.",
        ),
    )
    fraction: Share | Literal["automatic"] = Field(
        default="automatic",
        description="Part of the slot's state that one spill takes out, at least (k).",
        json_schema_extra=_about(
            "fraction of the slot's state",
            "`automatic` is 0.3 where spilled groups come back (`spill.reactivation`), otherwise "
            "0.05. Where groups come back, they need the room that a large spill leaves: it gives "
            "3 to 23 % more results where busy groups change, and up to 9 % less where all are "
            "alike. In TR-05-04, which pushes 30 % at a time, nothing comes back; then smaller "
            "spills give more (its Figure 9): on the laboratory's days, 5 % gives up to 13 points "
            "of the ceiling more. A spill takes at least what its epoch brought.",
        ),
    )
    inactive_s: float = Field(
        default=600.0,
        ge=0,
        description=(
            "With the victims `inactive-then-productivity` a group without a new row for longer is "
            "spilled before all others (theta_t); "
            "measured on the stream's clock, the Kafka time of the newest row."
        ),
        json_schema_extra=_about(
            "seconds",
            "A group is one part in 512 of the keys; ten minutes without a single row in a "
            "trading day mean that its keys have gone quiet. The paper uses half of the run, "
            "which in a day would let quiet state push out busy state for three hours.",
        ),
    )
    victims: Literal[
        "automatic",
        "expected-loss",
        "inactive-then-productivity",
        "productivity",
        "random",
        "largest",
        "most-productive",
        "bottom-up",
        "local-output",
        "global-output",
        "global-output-penalty",
    ] = Field(
        default="automatic",
        description="Policy that chooses the groups to spill, of all joins of a query alike.",
        json_schema_extra=_about(
            "policy",
            "`automatic` is `expected-loss` for a query of one join and `local-output` for a tree, "
            "the laboratory's best. `expected-loss` gives up the fewest results per byte, by how "
            "many a group's rows have given, how many come, and how long the session goes on. "
            "`productivity` goes by what a byte has "
            "given since the group was last spilled (TR-05-04). `random`, `largest` and "
            "`most-productive` are baselines to compare with. The last four are for trees of "
            "joins (SIGMOD 2006, section 3): `bottom-up` begins with the joins furthest from the "
            "root; `local-output` goes by what a group's own join gives for each byte, "
            "`global-output` by the final results, and `global-output-penalty` also counts the "
            "bytes that joins further up have got because of the group. With a single join "
            "`bottom-up` is `random`, and the other three are `productivity`.",
        ),
    )
    reactivation: Literal["automatic", "expected-gain", "rotation", "random", "off"] = Field(
        default="automatic",
        description="Policy by which spilled generations of groups come back to memory.",
        json_schema_extra=_about(
            "policy",
            "`automatic` is `expected-gain` where groups are spilled by `expected-loss`, otherwise "
            "`off`. `expected-gain` brings back the newest generation of a group when it, or the "
            "best run of generations from it on, is expected to give for each byte that stays a "
            "fifth more than the groups that leave for it would: the laboratory's days, whose "
            "folders have room, gain up to 47 points of the ceiling. `rotation` "
            "is Flux's: what was spilled longest ago, whatever it is worth. `random` is for tests.",
        ),
    )
    forecast: Literal["automatic", "day-before", "off"] = Field(
        default="automatic",
        description=(
            "What groups are expected to get. `automatic`: `day-before` where `spill.reactivation` "
            "is `off`, otherwise `off`. `day-before`: what their rates of today say, and the "
            "changes that they had in the session before from this time on, by today's level and "
            "as far as today goes like it. `off`: what their rates of today say. Used with "
            "`session.boundary = calendar` alone, for a query of one join without windows."
        ),
        json_schema_extra=_about(
            "name",
            "A group that comes back when it is busy need not be held for its hour. On the "
            "laboratory's days that change, where nothing comes back, a day before that was alike "
            "gives 0.1 points of the ceiling less to 29.1 more, and one that was not 0.7 less to "
            "11.0 more. Where groups come back, a day that was alike gives 4.0 less to 1.0 more, "
            "and one that was not 3.7 less to 0.9 more.",
        ),
    )
    traced_rows: Annotated[int, AfterValidator(_sample)] = Field(
        default=0,
        ge=0,
        description="Of each batch of results so many are drawn to count the groups that they came "
        "through; 0: all are counted.",
        json_schema_extra=_about(
            "rows",
            "Only `global-output` and `global-output-penalty` count them. 2 or more: one row says "
            "nothing of the error. With n rows drawn, the standard error of a group's share p is "
            "at most sqrt(p (1 - p) / n).",
        ),
    )


class StreamSettings(Section):
    """The streaming job."""

    trigger_s: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        description="Time between the beginnings of two epochs, unless more waits than one "
        "takes; 0: the next begins at once.",
        json_schema_extra=_about(
            "seconds",
            "An epoch of 600,000 rows takes about 2 s on two cores, and every epoch costs one "
            "commit per table: shorter epochs give fresher results and more small files.",
        ),
    )
    max_rows_per_epoch: int = Field(
        default=600_000,
        ge=1,
        description="Most rows that one epoch reads from Kafka; fewer when memory is scarce.",
        json_schema_extra=_about(
            "rows",
            "Large enough that the fixed cost of an epoch (0.2 to 0.3 s) does not matter, small "
            "enough that its rows (about 70 MB of messages) fit the room above the threshold.",
        ),
    )
    start: Annotated[str, AfterValidator(_start)] = Field(
        default="previous-close",
        description=(
            "Where the first session of a new warehouse begins: previous-close, earliest, "
            "latest, or a time with its offset."
        ),
        json_schema_extra=_about(
            "rule or RFC 3339 time",
            "What arrives after the last close belongs to the next day. Where that lies in the "
            "future or the topics hold nothing older it means earliest.",
        ),
    )


class RebalanceSettings(Section):
    """Groups that move between slots."""

    policy: Literal[
        "pooled",
        "lazy-disk",
        "active-disk",
        "flux-load",
        "flux-memory",
        "flux-hybrid",
        "supplier-consumer",
        "declustering",
        "fine-tuning",
        "balance",
        "degradation",
    ] = Field(
        default="pooled",
        description="What `spillway rebalance` decides by when nothing is said by hand.",
        json_schema_extra=_about(
            "policy",
            "Evens out work while there is room; once memory is short, draws one line through the "
            "groups of all slots: what is above it moves to where what is below will be spilled.",
        ),
    )
    pressure: float = Field(
        default=0.6,
        gt=0,
        le=1,
        description="pooled goes by memory once a slot uses this much of its budget.",
        json_schema_extra=_about(
            "fraction of state.budget_bytes",
            "Well before spill.threshold: while slots have room they are evened out by work alone.",
        ),
    )
    theta_d: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="Relocate when M_least / M_most, memory of the slots, is below this.",
        json_schema_extra=_about(
            "ratio",
            "TR-05-04 and DAX (slide 21) use 80 %. Figure 14: from 50 to 90 % the throughput is "
            "the same, while relocations grow from 2 to 24.",
        ),
    )
    min_span_s: float = Field(
        default=45.0,
        ge=0,
        description="Time between two relocations, at least.",
        json_schema_extra=_about(
            "seconds",
            "TR-05-04's; its Figure 15 shows nearly the same throughput with 15 s. Policies in "
            "rounds (flux-*) have a collection time of their own instead.",
        ),
    )
    theta_f: float = Field(
        default=2.0,
        ge=1,
        description="active-disk forces a spill when Rate_max / Rate_min is over this.",
        json_schema_extra=_about("ratio", "DAX's (slide 21: Ratio>2); TR-05-04 names no value."),
    )
    relocation_bytes: ByteSize = Field(
        default=ByteSize(30_000_000),
        ge=0,
        description="lazy-disk and active-disk relocate only more than this at a time.",
        json_schema_extra=_about(
            "bytes",
            "DAX's (slide 21: State relocation >30M). Lower it where budgets are under some "
            "hundred MB.",
        ),
    )
    forced_bytes: ByteSize = Field(
        default=ByteSize(100_000_000),
        ge=0,
        description="active-disk forces slots to spill this much in a session, at most.",
        json_schema_extra=_about("bytes", "DAX's (slide 21: Maximal Force-Disk memory 100M)."),
    )
    th_imb: float = Field(
        default=1.2,
        ge=1,
        description="Flux moves a group only between slots that are this far apart.",
        json_schema_extra=_about("ratio", "Flux's value (section 5.4)."),
    )
    th_util: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="By work, Flux moves no group to a slot that is busier than this.",
        json_schema_extra=_about("fraction of time", "Flux's value (section 5.4)."),
    )
    delta_min_s: float = Field(
        default=5.0,
        gt=0,
        description="Least collection time of Flux's rounds.",
        json_schema_extra=_about(
            "seconds",
            "Flux has 10 ms. Its Figure 9: under skew that halves the throughput, and from 250 ms "
            "on the policy beats none at all. Here figures are of whole epochs.",
        ),
    )
    th_sup: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="A slot whose buffer occupancy is above this is a supplier.",
        json_schema_extra=_about("fraction of the buffer", "The paper's (table 2)."),
    )
    th_con: float = Field(
        default=0.01,
        ge=0,
        lt=1,
        description="A slot whose buffer occupancy is below this is a consumer.",
        json_schema_extra=_about("fraction of the buffer", "The paper's (table 2)."),
    )
    beta: float = Field(
        default=0.5,
        gt=0,
        description="declustering adds slots when suppliers are more than beta x consumers.",
        json_schema_extra=_about(
            "ratio", "The rule is the paper's (section V-A), which gives beta no value."
        ),
    )
    theta_bytes: ByteSize = Field(
        default=ByteSize(3 << 19),
        ge=1,
        description="fine-tuning splits groups over twice this, and merges buddies below it, but "
        "none of the first state.groups.",
        json_schema_extra=_about(
            "bytes",
            "The paper's 1.5 MB suits windows of minutes. A group also needs a row of statistics: "
            "raise it for days of many gigabytes.",
        ),
    )
    degraded: float = Field(
        default=0.8,
        gt=0,
        lt=1,
        description=(
            "degradation relieves a slot whose rows and results for its working time are below "
            "this share of the other slots' median (of an even number the lesser of the middle "
            "two: of three slots a slot must be slower than both others)."
        ),
        json_schema_extra=_about(
            "ratio",
            "DAX names the policy (slide 8) and gives it no figure: 80 % as its memory threshold "
            "(slide 21).",
        ),
    )
    min_gain: float = Field(
        default=0.001,
        ge=0,
        lt=1,
        description="Moves must lessen the memory or work of the fuller slot by this share.",
        json_schema_extra=_about(
            "fraction",
            "One average group of 512 is 0.4 % of one of two slots: a round of Flux passes, a "
            "move of next to nothing does not.",
        ),
    )
    collection_s: float = Field(
        default=30.0,
        gt=0,
        description="Time over which rows, results, idle time and buffers are looked at.",
        json_schema_extra=_about(
            "seconds", "Some ten epochs, so that one long epoch does not decide."
        ),
    )
    expires_s: float = Field(
        default=60.0,
        gt=0,
        description="A policy's command that the stream has not read by then is refused.",
        json_schema_extra=_about(
            "seconds", "Figures older than a minute say little about a stream that was away."
        ),
    )

    max_bytes_per_epoch: ByteSize = Field(
        default=ByteSize(64 << 20),
        ge=1,
        description=(
            "State that one epoch moves between slots at most; a larger group moves alone. To a "
            "slot comes no more than half of what its folder has free, or 2 % of its budget."
        ),
        json_schema_extra=_about(
            "bytes",
            "An epoch that moves state waits for it: 100 MB take about a second, or six between "
            "hosts where Spark encrypts, during which no result appears. What does not fit moves "
            "in the next epochs.",
        ),
    )


class ResultsSettings(Section):
    """What joins give."""

    max_per_session: int = Field(
        default=0,
        ge=0,
        description=(
            "Most results of a session at run time; 0: no limit. Once a session has so many, no "
            "more rows are read: they wait in Kafka until the stream is started with a higher "
            "limit, or the session is sealed where it stands (`seal --at read`). The epoch that "
            "reaches the limit is kept whole. Cleanup is not limited."
        ),
        json_schema_extra=_about(
            "results",
            "What is too much, only the user knows. A key that joins everything with everything "
            "fills a disk in minutes; `explain --estimate` says what a usual day has.",
        ),
    )


class SessionSettings(Section):
    """Trading days."""

    calendar: str = Field(
        default="XNYS",
        min_length=1,
        description=(
            "Exchange calendar (a name of exchange_calendars) that says when days close. `24/7`: "
            "every day from midnight to midnight UTC; `24/7 Europe/Berlin`: of a time zone."
        ),
        json_schema_extra=_about("calendar", "The New York Stock Exchange, early closes included."),
    )
    overrides: str = Field(
        default="",
        description=(
            "Days of the calendar that are different this time, such as `2026-07-06 closed; "
            "2026-11-27 12:00`: no session, or one that closes then, by the exchange's clock. "
            "Airflow's `calendar` of `[spillway]` takes them, too: `XNYS; 2026-07-06 closed`."
        ),
        json_schema_extra=_about(
            "dates",
            "A holiday that is announced a week ahead is in no package yet, and a day that nobody "
            "trades on would wait for a close.",
        ),
    )
    carry: bool = Field(
        default=False,
        description=(
            "Whether a window reaches over the end of a session: rows that have not expired then "
            "join with those of the next session too, and such a result belongs to the later one. "
            "For queries with a window on every join. A warehouse keeps what it began with until "
            "its query changes."
        ),
        json_schema_extra=_about(
            "true/false",
            "An exchange's day ends with its close. Where input never pauses (calendar `24/7`) "
            "say true, or windows are cut at midnight.",
        ),
    )
    grace_s: float = Field(
        default=300.0,
        ge=0,
        description="How long after the close rows still belong to the session. Under Airflow "
        "`close_delay_s` of `[spillway]` must not be shorter.",
        json_schema_extra=_about(
            "seconds",
            "The closing auction prints and producers' retries arrive within minutes of the "
            "bell; five keep them in the day and let the seal come soon after it.",
        ),
    )
    boundary: Literal["command", "calendar"] = Field(
        default="command",
        description=(
            "Who says where a session ends: the `seal` command, or the calendar (close plus "
            "grace, which a later `seal --at close` confirms). The calendar's end is looked up by "
            "the records' times: give the topics message.timestamp.type = LogAppendTime, or one "
            "record that is dated ahead moves it."
        ),
        json_schema_extra=_about(
            "command/calendar",
            "Replays and tests have no clock to obey. Under a scheduler use calendar: then an "
            "outage of the scheduler puts no evening row into the day.",
        ),
    )

    @property
    def days(self) -> str:
        """The calendar with the overrides, as `spillway.calendar` takes it."""
        return "; ".join(filter(None, (self.calendar, self.overrides.strip())))


RecoveryMode = Literal["auto", "restore", "defer"]


class RecoverySettings(Section):
    """What happens when state is lost."""

    mode: RecoveryMode = Field(
        default="auto",
        description=(
            "`restore`: what lost slots had in memory is read again from Kafka before the stream "
            "goes on. `defer`: it goes on at once without that, as if the slots had been spilled, "
            "and cleanup reads those rows in Kafka. `auto`: restored where that is expected to "
            "take at most `recovery.restore_within_s`, else deferred. Of trees of joins, and with "
            "`session.carry`, state is always restored."
        ),
        json_schema_extra=_about(
            "name",
            "While the stream reads again it gives no result; what is deferred gives its own after "
            "the close.",
        ),
    )
    restore_within_s: float = Field(
        default=60.0,
        ge=0,
        description="With `recovery.mode = auto`: how long reading lost state again may take.",
        json_schema_extra=_about(
            "seconds",
            "A minute without results is short beside a day, and what is restored gives all of its "
            "results at run time. On two cores it is about 24 million rows.",
        ),
    )

    wait_s: float = Field(
        default=60.0,
        ge=0,
        description="How long the driver waits for lost executors before it moves their slots.",
        json_schema_extra=_about(
            "seconds",
            "A standalone cluster replaced a killed executor within 17 s. State on a host "
            "outlives the executor, so waiting is cheaper than reading the day from Kafka again.",
        ),
    )


Days = Annotated[int, Field(ge=0, le=36_500)]
"""A number of days, up to a hundred years."""


class MaintenanceSettings(Section):
    """What `spillway maintain` keeps of days that are proved complete."""

    keep_spilled_days: int = Field(
        default=7,
        ge=0,
        le=36_500,
        description=(
            "How long after its cleanup a day's spilled rows stay; 0: they go at the next run. "
            "Only days that are proved complete lose them."
        ),
        json_schema_extra=_about(
            "days",
            "Nothing reads them any more. They help whoever looks into a doubtful day as long as "
            "Kafka has its messages too, by default a week.",
        ),
    )
    keep_statistics_days: int = Field(
        default=30,
        ge=0,
        le=36_500,
        description=(
            "How long after its cleanup a day's figures of groups stay; 0: they go at the next "
            "run. Only days that are proved complete lose them."
        ),
        json_schema_extra=_about(
            "days",
            "Policies look at the open day; reports of past days look back, a month say. 512 "
            "groups take 25 KB every 5 s: about a hundred megabytes in a trading day.",
        ),
    )
    archive_journal_days: Days | Literal["never"] = Field(
        default="never",
        description=(
            "How long after its cleanup a day's entries stay in the table `journal`; then they "
            "move to a file of their own in the folder `archive`. 0: they move at the next run. "
            "Only days that are proved complete move, in their order, and only before another "
            "such day."
        ),
        json_schema_extra=_about(
            "days",
            "No start reads old entries, and they take little room: it takes years to matter. "
            "Other programs that read the table do not find what has moved.",
        ),
    )


class MetricsSettings(Section):
    """What monitoring can ask the stream for."""

    listen: Annotated[str, AfterValidator(_listener)] = Field(
        default="",
        description="Where the stream serves `/metrics` to Prometheus; empty: nowhere.",
        json_schema_extra=_about(
            "host:port",
            "Off, since two streams on one machine cannot have one port, and a port that is "
            "taken keeps the stream from starting. Nobody is asked for a password there, so name "
            "an address that only your own can reach: 127.0.0.1:9464 for a Prometheus beside it.",
        ),
    )


class SparkSettings(Section):
    """Where the jobs run."""

    master: Annotated[str, AfterValidator(_master)] = Field(
        default="local[*]",
        description="Spark master: local[*], local[cores], local-cluster[n,cores,MiB], "
        "spark://host:port, yarn, or k8s://...",
        json_schema_extra=_about("master", "All cores of this machine; nothing to install."),
    )
    ui_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Port of the stream's Spark UI; 0: it has none.",
        json_schema_extra=_about(
            "port",
            "Off: it takes memory and time of the driver, and nobody is asked for a password "
            "there. With a local master it listens on the loopback only.",
        ),
    )


class Settings(BaseSettings):
    """All settings. Made by `load_settings`; the constructor itself reads no other source."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_DELIMITER
    )

    _name: str = PrivateAttr(default="")

    @property
    def name(self) -> str:
        """Which of the settings file's queries these are for; empty: of its only one."""
        return self._name

    @property
    def shown_name(self) -> str:
        """The query's name for people: that, or its file's."""
        return self._name or PurePath(self.query).stem

    query: str = Field(
        default="symbol",
        min_length=1,
        description="The query: the name of a shipped one, or the path of a TOML file. Or the name "
        "of a `[queries.NAME]` table of the settings file: `spillway --query NAME`.",
        json_schema_extra=_about(
            "name or path", "The papers' query: three streams joined on their symbol."
        ),
    )
    kafka: KafkaSettings = KafkaSettings()
    registry: RegistrySettings = RegistrySettings()
    warehouse: WarehouseSettings = WarehouseSettings()
    state: StateSettings = Field(default_factory=StateSettings)
    plan: PlanSettings = PlanSettings()
    spill: SpillSettings = SpillSettings()
    stream: StreamSettings = StreamSettings()
    rebalance: RebalanceSettings = RebalanceSettings()
    results: ResultsSettings = ResultsSettings()
    session: SessionSettings = SessionSettings()
    recovery: RecoverySettings = RecoverySettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    metrics: MetricsSettings = MetricsSettings()
    spark: SparkSettings = SparkSettings()

    @property
    def secrets(self) -> dict[str, SecretStr]:
        """Options whose values no text may show."""
        return {**self.kafka.options, **self.warehouse.options}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load_settings` merged: it has to know the origin of every value."""
        return (init_settings,)
