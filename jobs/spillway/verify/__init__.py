"""The independent proof that a session is complete: `spillway.verify.proof.verify`.

| module | idea |
|---|---|
| `arithmetic` | the test of one key, vectorised over keys (pure) |
| `fold` | the sums of a whole tree from those of its leaves, as one SQL statement (pure) |
| `weights` | the number of each row, many at once (pure) |
| `sweep` | the sums of one join with a window, without its results (pure) |
| `sums` | sums of weights by key: made where rows are read, kept in files, judged in parts |
| `tasks`, `processes` | one join: what a process reads and sums, and several of them on this host |
| `single` | what is asked of a query of one join |
| `workers` | what Spark's Python workers judge and sweep |
| `rows` | input from Kafka and results from the table, as hashed rows (Spark frames) |
| `trees`, `windowed` | what is asked of a tree, and of a join with a window (Spark frames) |
| `verdicts` | what is said of the keys, before a person reads it |
| `difference` | the batch join that names what is missing or doubled (Spark) |
| `progress` | what it is doing, told a line at a time |
| `frames` | what a proof is made from, by what the query is |
| `proof` | from a session's sealed entry to the verdict |
| `shown` | the verdict as a table |

What is proved, and why that is enough, stands in `docs/proof.md`.

Beyond `spillway.kafka.reading` and `spillway.decode` nothing is shared with what is proved: not the
engine's hash, not its join, not its files. What goes wrong in these two goes wrong on both sides.
Corrections read their session's rows by `spillway.sealed_input`, too, and estimates reckon by
`fold` and `sweep`.

Importing this package imports neither Spark nor deltalake (workers import it too).
"""
