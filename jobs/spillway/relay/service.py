"""`spillway relay`, put together: the settings' warehouse, the settings' Kafka, one topic."""

from __future__ import annotations

import threading
from functools import partial

from spillway.decode import tree_spec
from spillway.following.rows import Follower
from spillway.protocol.queries import QueryChanged
from spillway.protocol.state import check_query
from spillway.relay.kept import demand_fit
from spillway.relay.outlet import Outlet
from spillway.relay.run import Telling, relay
from spillway.tables import Warehouse, opened
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
    warehouse that has had several, also when it changes while this runs.
    """
    demand_fit(topic, query.topics)
    identity = [f"{leaf}_{part}" for leaf in query.inputs for part in ("partition", "offset")]
    warehouse = opened(settings.warehouse)
    follower = Follower(warehouse, identity)
    state = follower.journal_state()
    check_query(state.genesis, query.fingerprint)
    _demand_one_query(warehouse)
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
        fits=partial(_demand_one_query, warehouse),
    )


def _demand_one_query(warehouse: Warehouse) -> None:
    """Raise `QueryChanged` where the journal knows of more than one. The claim that changes it is
    there before any row of the changed one."""
    warehouse.journal.refresh()
    if len(warehouse.journal.geneses()) > 1:
        raise QueryChanged(
            "the query of this warehouse has changed, and rows of the sessions before have other "
            "coordinates and columns: a relay could not tell them apart. Follow the table itself"
        )
