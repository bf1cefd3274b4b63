"""`spillway relay`, put together: the settings' warehouse, the settings' Kafka, one topic."""

from __future__ import annotations

import threading

from spillway.decode import tree_spec
from spillway.following.rows import Follower
from spillway.protocol.queries import QueryChanged
from spillway.protocol.state import check_query
from spillway.relay.kept import demand_fit
from spillway.relay.outlet import Outlet
from spillway.relay.run import Telling, relay
from spillway.tables import opened
from spillway_schemas.query import Query
from spillway_schemas.settings import Settings


def relay_results(
    settings: Settings,
    query: Query,
    topic: str,
    *,
    once: bool,
    from_now: bool,
    create: int | None,
    stop: threading.Event,
    telling: Telling,
) -> None:
    """Relay until `stop` is set. `create`: partitions of a topic that does not exist yet; None: it
    has to.

    Raises what `relay` does, `NoWarehouse`, `NothingYet`, `AnotherQuery`, and `QueryChanged` for a
    warehouse that has had several.
    """
    demand_fit(topic, query.topics)
    identity = [f"{leaf}_{part}" for leaf in query.inputs for part in ("partition", "offset")]
    follower = Follower(opened(settings.warehouse), identity)
    state = follower.journal_state()
    check_query(state.genesis, query.fingerprint)
    if state.before:
        raise QueryChanged(
            "the query of this warehouse has changed, and rows of the sessions before have other "
            "coordinates and columns: a relay could not tell them apart. Follow the table itself"
        )
    kafka = settings.kafka
    keys = tree_spec(query).root.keys.names
    relay(
        follower,
        lambda: Outlet(
            kafka.bootstrap_servers, kafka.options, topic, keys, identity, create, kafka.replication
        ),
        state.genesis.warehouse_id,
        once=once,
        from_now=from_now,
        stop=stop,
        telling=telling,
    )
