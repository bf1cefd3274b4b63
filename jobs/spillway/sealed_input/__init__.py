"""The input of a sealed session, read again from Kafka: what the proof of a session and its
corrections have in common. What they make of its rows they do not share (decision 40).

| module | idea |
|---|---|
| `timing` | how the session's rows were judged by their times |
| `decoding` | its messages as decoded rows: what runs in workers |
| `frames` | the same as Spark frames |
| `times` | times that join, as conditions of Spark's |

Importing this package imports neither Spark nor deltalake (workers import it too).
"""
