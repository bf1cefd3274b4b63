"""Checks of the Schema Registry, and of the schemas that a query's streams are written by."""

from __future__ import annotations

from spillway.decode.formats.decoder import decoder_of
from spillway.doctor.check import Check
from spillway.registry.client import NotThere, RegistryClient, RegistryUnavailable, SchemaTrouble
from spillway.registry.known import FOLDER, KnownSchemas
from spillway.storage import folder
from spillway_schemas.formats import PROTOBUF, WriterSchema
from spillway_schemas.messages import Rejected
from spillway_schemas.query import Query, StreamInput
from spillway_schemas.settings import Settings

MOST_COMPARED = 200
"""Schemas that the warehouse keeps and that are asked for again."""


def schemas(settings: Settings, query: Query | None) -> list[Check]:
    """The registry, its newest schema of each topic, and those that the warehouse has read by.

    None for a query whose values have no ids.
    """
    if query is None:
        return []
    asked = {
        query.topic(leaf): query.stream(leaf)
        for leaf in query.inputs
        if query.stream(leaf).value_format.has_ids
    }
    if not asked:
        return []
    registry = settings.registry
    client = RegistryClient(registry.url, registry.options, wait_s=0.0)
    checks = []
    try:
        for topic, stream in asked.items():
            name = f"schema of {topic}"
            try:
                found = client.latest(f"{topic}-value")
            except NotThere:
                what = f"the registry has no subject {topic}-value"
                mend = (
                    "no fault if its subjects are named otherwise: ids are looked up as they come"
                )
                checks.append(Check(name, "warn", what, mend))
                continue
            checks.append(judge_schema(name, found, _problem(found, stream)))
        known = KnownSchemas(
            client, folder(settings.warehouse.root, settings.warehouse.options).child(FOLDER)
        )
        checks += _kept(known, client)
    except RegistryUnavailable as error:
        mend = (
            "start it: a message with an id that is new here holds the stream up until it answers"
        )
        return [*checks, Check("registry", "warn", str(error), mend)]
    except SchemaTrouble as error:
        return [*checks, Check("registry", "fail", str(error), "mend [registry] in the settings")]
    return [Check("registry", "ok", f"{registry.url} answers"), *checks]


def _problem(schema: WriterSchema, stream: StreamInput) -> str:
    """What keeps rows that this schema writes from keeping the stream's contract."""
    format_, rules = stream.value_format, stream.rules
    place = (0,) if format_.name == PROTOBUF else ()
    try:
        decoder = decoder_of(format_, rules, schema, place)
    except Rejected as error:
        return str(error)
    missing = [rule.name for rule in rules if not rule.optional and not decoder.has(rule.name)]
    return f"schema {schema.id} has no field {', '.join(missing)}" if missing else ""


def judge_schema(name: str, schema: WriterSchema, problem: str) -> Check:
    """Whether rows of a topic's newest schema can keep the contract."""
    if problem:
        return Check(
            name,
            "warn",
            f"{problem}: its rows go to quarantine",
            "mend the stream's fields or its reader, or the producer's schema",
        )
    return Check(name, "ok", f"its newest is {schema.id}, and has what the query asks for")


def _kept(known: KnownSchemas, client: RegistryClient) -> list[Check]:
    """Whether the registry means by ids what it meant when the warehouse read by them."""
    for mine in known.kept()[:MOST_COMPARED]:
        try:
            theirs = client.schema(mine.id)
        except NotThere:
            continue  # deleted there, and still known here
        if theirs != mine:
            return [
                Check(
                    "schemas",
                    "fail",
                    f"schema {mine.id} is another one in the registry than this warehouse reads by",
                    "the registry was made anew: take another warehouse.root for it, or register "
                    "the old schemas under their ids",
                )
            ]
    return []
