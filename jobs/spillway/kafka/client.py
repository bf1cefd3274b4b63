"""What a Kafka cluster says of itself and its topics: ids, offsets, settings.

A `KafkaCluster` is one admin connection. Offsets come as `Offsets`: a list per topic, one number
for each partition, in the order of partitions.

Invariant: nothing here creates a topic by asking for it, and a topic that does not exist is an
error that names it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from spillway.kafka.options import check_files, python_options
from spillway.kafka.refusals import Refusals
from spillway_schemas.exits import FAILED
from spillway_schemas.journal import Offsets, Topic
from spillway_schemas.secret import Options, hide

TIMEOUT_S = 30.0
"""How long a cluster may take to answer."""
LOOK_CONNECT_S, LOOK_ANSWER_S = 0.5, 2.0
"""How long a port, and then an answer, may take where people or figures wait for a look."""
REFUSED_S = 6.0
"""So long a client may take to hear that it is refused: brokers answer a wrong password late."""

CLIENT_FILES = 16
"""A client with fewer files left may not have had what it needed: sockets, its selector, a pipe."""

_UNKNOWN, _INVALID, _FORBIDDEN, _REPLICA_AWAY = 3, 17, 29, 9
"""Kafka's error codes: unknown topic or partition, invalid topic, topic authorization failed,
replica not available."""

_T = TypeVar("_T")


class _Explained(RuntimeError):
    """An error that knows how it is mended, so that who shows both says neither twice."""

    exit_code = FAILED

    def __init__(self, what: str, remedy: str = "") -> None:
        """`what` happened, and the `remedy`; the message is both."""
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class KafkaUnavailable(_Explained):
    """No broker answered in time, or it gave up; trying again later may help."""


class KafkaRefuses(KafkaUnavailable):
    """A broker is there and rejects this client: TLS, a certificate, a password. One that is
    starting may do so, too, so that whoever waits goes on waiting."""


class OutOfFiles(_Explained):
    """This process may open no more files, connections among them: no broker is at fault."""

    def __init__(self) -> None:
        super().__init__(
            "no connection to Kafka can be opened: too many open files",
            "raise the limit (`ulimit -n`)",
        )

    def __reduce__(self) -> tuple[type[OutOfFiles], tuple[()]]:
        """As it was made: a process of the proof hands it on."""
        return OutOfFiles, ()


class TopicProblem(_Explained):
    """A topic does not exist or cannot be used as asked; trying again does not help."""


class TopicMissing(TopicProblem):
    """There is no such topic."""


class AnotherCluster(TopicProblem):
    """A cluster is not the one that the journal's offsets belong to, whatever its topics are
    called."""


@contextlib.contextmanager
def cluster(
    bootstrap: str, options: Options | None = None, timeout_s: float = TIMEOUT_S
) -> Iterator[KafkaCluster]:
    """Connect to the cluster behind `bootstrap` (`host:port`, or several by commas).

    Raises KafkaUnavailable when no broker answers within `timeout_s`.
    """
    view = KafkaCluster(bootstrap, options, timeout_s)
    try:
        yield view
    finally:
        view.close()


def listens(bootstrap: str, timeout_s: float) -> bool:
    """Whether a connection to one of the brokers is taken: a quick look before a client's long
    one."""
    return silence(bootstrap, timeout_s) is None


def silence(bootstrap: str, timeout_s: float) -> str | None:
    """Why no broker takes a connection; None: one does."""
    unknown = []
    for server in bootstrap.split(","):
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
            return None
        except socket.gaierror:
            unknown.append(host)
        except OSError:
            continue
    if len(unknown) == len(bootstrap.split(",")):
        return f"this machine knows no host {' or '.join(unknown)}"
    return f"nothing listens at {bootstrap}"


def unanswered(what: str, remedy: str) -> KafkaUnavailable | OutOfFiles:
    """Why no broker has answered, as whoever asked it sees it: `what` and `remedy`; but a client
    that could not open its connection says the same, and more brokers do not mend that."""
    taken: list[int] = []
    try:
        for _ in range(CLIENT_FILES):
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return OutOfFiles()
    finally:
        for each in taken:
            os.close(each)
    return KafkaUnavailable(what, remedy)


def demand_listener(bootstrap: str, timeout_s: float = 3.0) -> None:
    """Raise KafkaUnavailable when nobody listens; a client would try for half a minute, silently.

    For commands and looks that a person waits for. What runs by itself has its client's patience.
    """
    if why := silence(bootstrap, timeout_s):
        raise unanswered(why, absent_remedy(bootstrap))


def absent_remedy(bootstrap: str) -> str:
    """What to do when no broker is found; the embedded one is only ever here."""
    hosts = {server.rpartition(":")[0].strip("[]") for server in bootstrap.split(",")}
    if hosts & {"127.0.0.1", "localhost", "::1"}:
        return (
            "start the embedded broker with 'spillway kafka start', or set "
            "kafka.bootstrap_servers to the address of yours"
        )
    return "check the address in kafka.bootstrap_servers, and that the broker runs"


def told(error: BaseException, options: Options) -> str:
    """An error of kafka-python with its type, which some of its messages begin with already.

    Without the secrets in `options`, the client's.
    """
    name, text = type(error).__name__, str(error)
    while text.startswith(name):
        text = text.removeprefix(name).lstrip(": ")
    return hide(f"{name}: {text}" if text else name, options)


def unavailable(
    bootstrap: str, options: Options, error: BaseException
) -> KafkaUnavailable | OutOfFiles:
    """What to raise for an error of kafka-python, or of the network."""
    what = f"Kafka at {bootstrap} does not answer ({told(error, options)})"
    if listens(bootstrap, LOOK_CONNECT_S):
        return unanswered(
            f"{what}, though something listens there",
            "see that it is a broker, and what the broker's log says; check "
            "kafka.bootstrap_servers and kafka.options, too",
        )
    return unanswered(what, f"{absent_remedy(bootstrap)}; check kafka.options, too")


def connected(kind: Any, bootstrap: str, config: Mapping[str, Any]) -> Any:
    """A consumer or an admin client of kafka-python. Raises what its constructor raises.

    A constructor that finds nobody leaves its thread behind, one more with every look at a broker
    that hangs: that is ended here. A producer starts none before.
    """
    from kafka.errors import KafkaError

    client = kind.__new__(kind)
    try:
        kind.__init__(client, bootstrap_servers=bootstrap.split(","), **config)
    except BaseException:
        if hasattr(client, "_net"):
            with contextlib.suppress(KafkaError, OSError):  # why nobody was found is what is told
                client._client.close()
            client._net.stop()
        raise
    return client


class KafkaCluster:
    """One admin connection. Close it, or use `cluster()`."""

    def __init__(
        self,
        bootstrap: str,
        options: Options | None = None,
        timeout_s: float = TIMEOUT_S,
    ):
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        self._timeout_s = timeout_s
        check_files(options or {})
        config: dict[str, Any] = {
            "request_timeout_ms": int(max(timeout_s, 1.0) * 1000),
            "metadata_max_age_ms": 30_000,
            "client_id": "spillway-admin",
        } | python_options(options or {}, "admin")
        self._bootstrap = bootstrap
        self._options = options or {}
        # A client does not give up before its time, even where its password is wrong.
        parts = [timeout_s]
        if timeout_s > 2 * REFUSED_S:
            parts = [REFUSED_S, timeout_s - REFUSED_S]
        with Refusals() as refusals:
            for part_s in parts:
                config["bootstrap_timeout_ms"] = int(part_s * 1000)
                try:
                    self._admin: Any = connected(KafkaAdminClient, bootstrap, config)
                    return
                except (KafkaError, OSError) as error:
                    failure = error
                    if refusals.is_certain:
                        break
        if why := refusals.why(self._options):
            raise KafkaRefuses(
                f"Kafka at {bootstrap} rejects this client: {why}", "mend kafka.options"
            ) from failure
        raise unavailable(bootstrap, self._options, failure) from failure

    def close(self) -> None:
        """Close the connection."""
        self._admin.close()

    def cluster_id(self) -> str:
        """The cluster's id."""
        return str(self._ask(self._admin.describe_cluster)["cluster_id"])

    def topics(self, names: Sequence[str]) -> list[Topic]:
        """Id and number of partitions of each topic, in the order of `names`.

        Raises TopicProblem that names every topic that does not exist.
        """
        described = self._described(names)
        by_name = {d["name"]: d for d in described if d["error_code"] == 0}
        forbidden = [d["name"] for d in described if d["error_code"] == _FORBIDDEN]
        if forbidden:
            raise TopicProblem(
                f"{self._bootstrap} does not let this user see topic {', '.join(forbidden)}",
                "grant Describe and Read on it, or check the credentials in kafka.options",
            )
        missing = [name for name in names if name not in by_name]
        if missing:
            raise TopicMissing(
                f"no topic {' or '.join(repr(m) for m in missing)} on {self._bootstrap}",
                "run 'spillway topics --create', or name another one in the query. One that was "
                "deleted is not brought back by that: see the runbook, `A topic was deleted`",
            )
        return [
            Topic(name=n, id=str(by_name[n]["topic_id"]), partitions=len(by_name[n]["partitions"]))
            for n in names
        ]

    def demand_rights(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Raise TopicProblem where this user may not do with a topic what is `wanted`: Kafka's
        names of operations (`Write`), by topic.

        Topics that do not exist are passed over, and those of a broker that tells no rights: one
        that does tells of each topic which it shows that this user may see it.
        """
        lacking: dict[str, list[str]] = {}
        for found in self._described(list(wanted)):
            name = found["name"]
            known = found.get("authorized_operations") or ()
            may = {"".join(word.capitalize() for word in each.split("_")) for each in known}
            if found["error_code"] == _FORBIDDEN:
                lacking[name] = list(wanted[name])
            elif "Describe" in may and set(wanted[name]) - may:
                lacking[name] = [each for each in wanted[name] if each not in may]
        if lacking:
            rights = [f"{' and '.join(each)} on topic {name}" for name, each in lacking.items()]
            raise TopicProblem(
                f"{self._bootstrap} does not let this user do all that is needed",
                f"grant {', and '.join(rights)}, or check the credentials in kafka.options",
            )

    def _described(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Kafka's metadata of topics; waits while one is there but has no leader yet."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            found: list[dict[str, Any]] = self._ask(
                lambda: self._admin.describe_topics(list(names))
            )
            codes = {d["error_code"] for d in found}
            codes |= {p["error_code"] for d in found for p in d["partitions"]}
            # A partition without some replica is as good as any to us.
            if not codes - {0, _UNKNOWN, _INVALID, _FORBIDDEN, _REPLICA_AWAY}:
                return found
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"a topic of {', '.join(names)} on {self._bootstrap} has no leader (Kafka's "
                    f"error codes {sorted(codes - {0})})",
                    "see that all brokers run",
                )
            time.sleep(0.1)

    def existing_topics(self) -> list[str]:
        """The names of all topics."""
        return sorted(self._ask(self._admin.list_topics))

    def beginning_offsets(self, names: Sequence[str]) -> Offsets:
        """The first offset that each partition still holds."""
        from kafka.protocol.consumer import OffsetSpec

        return self._offsets(self.topics(names), OffsetSpec.EARLIEST, read_committed=False)

    def end_offsets(self, names: Sequence[str], *, read_committed: bool = True) -> Offsets:
        """One past the last offset of each partition.

        Under `read_committed` it is the last stable offset: what lies beyond belongs to a
        transaction that is still open.
        """
        from kafka.protocol.consumer import OffsetSpec

        return self._offsets(self.topics(names), OffsetSpec.LATEST, read_committed)

    def offsets_for_time(
        self, names: Sequence[str], at_ms: int, *, read_committed: bool = True
    ) -> Offsets:
        """Of each partition the first offset whose record is of `at_ms` or later.

        `at_ms` is in ms since 1970, compared with the records' Kafka timestamps. A partition
        without such a record gives its end offset, as it was before the question was asked.
        """
        topics = self.topics(names)
        from kafka.protocol.consumer import OffsetSpec

        # The ends first: what arrives between the two questions stays on the later side.
        ends = self._offsets(topics, OffsetSpec.LATEST, read_committed)
        found = self._offsets(topics, at_ms, read_committed)
        return {
            name: [at if at >= 0 else end for at, end in zip(offsets, ends[name], strict=True)]
            for name, offsets in found.items()
        }

    def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Each topic's settings by their Kafka names, e.g. `cleanup.policy`, `retention.ms`."""
        from kafka.admin import ConfigResource, ConfigResourceType

        self.topics(names)
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        answer = self._ask(lambda: self._admin.describe_configs(resources, config_filter="all"))
        by_topic: dict[str, dict[str, Any]] = answer["topic"]
        return {
            name: {key: str(entry["value"]) for key, entry in by_topic[name].items()}
            for name in names
        }

    def create_topics(
        self,
        partitions: Mapping[str, int],
        configs: Mapping[str, str] | None = None,
        replication: int = -1,
    ) -> list[str]:
        """Create the topics that do not exist yet; the names of those that were created.

        `replication`: brokers that hold each partition; -1: the cluster's own default.
        Raises TopicProblem when one exists with another number of partitions, and when the cluster
        refuses (fewer brokers than `replication`, say).
        """
        from kafka.errors import TopicAuthorizationFailedError

        existing = set(self.existing_topics())
        fresh = [name for name in partitions if name not in existing]
        there = [name for name in partitions if name in existing]
        for topic in self.topics(there) if there else []:
            if topic.partitions != partitions[topic.name]:
                raise TopicProblem(
                    f"topic {topic.name!r} exists with {topic.partitions} partitions, not "
                    f"{partitions[topic.name]}",
                    "use that number, or another name",
                )
        if fresh:
            wanted = {
                name: {
                    "num_partitions": partitions[name],
                    "replication_factor": replication,
                    "configs": dict(configs or {}),
                }
                for name in fresh
            }
            try:
                self._ask(lambda: self._admin.create_topics(wanted, wait_for_metadata=True))
            except TopicProblem as error:
                if not isinstance(error.__cause__, TopicAuthorizationFailedError):
                    raise
                raise TopicProblem(
                    f"{self._bootstrap} does not let this user make topics",
                    f"grant Create on topic {', '.join(fresh)}, or have somebody make it who may",
                ) from error
        return fresh

    def add_partitions(self, name: str, total: int) -> None:
        """Raise a topic's number of partitions to `total`."""
        self._ask(lambda: self._admin.create_partitions({name: total}))
        self._wait(
            lambda: self.topics([name])[0].partitions == total, f"{name}: {total} partitions"
        )

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics and wait until they are gone."""
        gone = list(names)
        self._ask(lambda: self._admin.delete_topics(gone))
        self._wait(
            lambda: not set(gone) & set(self.existing_topics()), f"deletion of {', '.join(gone)}"
        )

    def _wait(self, done: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise KafkaUnavailable(f"{what} was not seen within {timeout_s:.0f} s")
            time.sleep(0.05)

    def _offsets(self, topics: Sequence[Topic], spec: Any, read_committed: bool) -> Offsets:
        from kafka import TopicPartition
        from kafka.protocol.consumer import IsolationLevel

        level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(t.name, p): spec for t in topics for p in range(t.partitions)}
        answer = self._ask(lambda: self._admin.list_partition_offsets(asked, level))
        return {
            t.name: [int(answer[TopicPartition(t.name, p)].offset) for p in range(t.partitions)]
            for t in topics
        }

    def _ask(self, question: Callable[[], _T]) -> _T:
        from kafka.errors import (
            InvalidReplicationFactorError,
            InvalidTopicError,
            KafkaError,
            PolicyViolationError,
            TopicAlreadyExistsError,
            TopicAuthorizationFailedError,
        )

        refusals = (
            InvalidReplicationFactorError,
            InvalidTopicError,
            PolicyViolationError,
            TopicAlreadyExistsError,
            TopicAuthorizationFailedError,
        )
        try:
            return question()
        except refusals as error:
            raise TopicProblem(f"{self._bootstrap} refused: {error}") from error
        except (KafkaError, OSError) as error:
            raise unavailable(self._bootstrap, self._options, error) from error
