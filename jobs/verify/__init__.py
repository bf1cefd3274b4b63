"""The independent proof that a session is complete: `jobs.verify.proof.verify`.

| module | idea |
|---|---|
| `arithmetic` | the test of one key, vectorised over keys (pure) |
| `workers` | what runs in Spark's Python workers: decode, judge |
| `rows` | input from Kafka and results from the table, as hashed rows (Spark frames) |
| `difference` | the batch join that names what is missing or doubled (Spark) |
| `proof` | from a session's sealed entry to the verdict |

Beyond `jobs.decode` nothing of the engine is used: not its hash, not its join, not its files.
"""
