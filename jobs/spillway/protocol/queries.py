"""By which query a session runs, and how the query of a warehouse changes. Pure.

A session runs by one query, from its first row to its proof. So a changed query is taken up by a
session of which no row has been read (`spillway.protocol.state.not_changeable`), with the claim of
the driver that goes on by it; and cleanup and `verify` of the sessions before go by the query whose
text the journal keeps.
"""

from __future__ import annotations

from spillway.protocol.state import (
    AnotherQuery,
    JournalState,
    check_query,
    genesis_of,
    not_changeable,
)
from spillway_schemas.exits import USAGE
from spillway_schemas.journal import Genesis
from spillway_schemas.query import Query, QueryError, query_from
from spillway_schemas.query_changes import Change, changes


class QueryChanged(Exception):
    """The query is another one than that by which the open session has begun."""

    exit_code = USAGE


def kept_query(genesis: Genesis, given: Query | None = None) -> Query:
    """The query of a genesis: the one given, where it is that, else the journal's text of it.

    Raises `AnotherQuery` where the journal has no text, or one that means something else to this
    version; `QueryError` for a text that it does not take.
    """
    if given is not None and given.fingerprint == genesis.query:
        return given
    if genesis.text is None:
        if given is not None:
            check_query(genesis, given.fingerprint)
        raise AnotherQuery(
            "this warehouse is from before the text of its query was kept: name the query file "
            "that its stream was started with, and start `spillway stream` once"
        )
    query = query_from(genesis.text)
    if query.fingerprint != genesis.query:
        raise AnotherQuery(
            f"the journal's text of the query (from {genesis.text.path}) means something else to "
            "this version of spillway, or the files that it names have changed. Use the version "
            "that the session ran with, or bring the files back"
        )
    return query


def session_query(state: JournalState, session: str, given: Query | None = None) -> Query:
    """The query by which a session ran or runs; of one that the journal does not know, the open
    one's. Raises as `kept_query` does."""
    sealed = state.sealed.get(session)
    return kept_query(state.genesis if sealed is None else genesis_of(state, sealed), given)


def told_changes(genesis: Genesis, query: Query) -> list[Change]:
    """What is different in a query from that of a genesis; by fingerprints alone, where nothing
    else is known of that one."""
    if genesis.query == query.fingerprint:
        return []
    try:
        return changes(kept_query(genesis), query)
    except (AnotherQuery, QueryError):
        return [Change("fingerprint", genesis.query, query.fingerprint)]


def goes_on_by_another(state: JournalState, query: Query) -> bool:
    """Whether the open session is to go on by another query than the journal's.

    Raises `QueryChanged` where it cannot.
    """
    if state.genesis.query == query.fingerprint:
        return False
    date = state.session.date
    told = "".join(f"\n  {each.text}" for each in told_changes(state.genesis, query))
    if not {topic.name for topic in state.topics} & set(query.topics):
        raise QueryChanged(
            f"this warehouse is another query's: none of its topics is one of the query's.{told}\n"
            "Nothing was written. Name the query file that its stream was started with, or a "
            "warehouse.root of the query's own"
        )
    if problem := not_changeable(state):
        raise QueryChanged(
            f"the query has changed in mid-session: {problem}.{told}\n"
            "Nothing was written. Either go back to the query as it was, or end the session by it, "
            "and the next one takes the changed query up:\n"
            f"  spillway seal --session {date}\n"
            f"  spillway stream --until-sealed {date} --as-begun"
        )
    return True
