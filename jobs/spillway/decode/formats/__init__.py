"""Formats beside JSON: values to fields, for the same contract.

Values are told apart by their writers' schemas (`framing`), and each schema has a decoder:

1. what it can read on whole columns (`avro_columns`, `protobuf_columns`) is typed columns, which
   the contract's rules judge as they judge those of JSON (`spillway.decode.rules`);
2. what is left, and every row that breaks a rule, goes through the format's library, one value at
   a time, and through the pydantic model. They are the contract.

The first gives what the second would give, or nothing: property tests hold them together. What a
value gives follows from its bytes and its schema. A schema is known by its id, for good
(`spillway_schemas.formats.Writers`).

fastavro and protobuf are optional: the extras `avro` and `protobuf`. The locks have both.
"""
