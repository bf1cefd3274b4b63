"""About how many results a session has, and the keys that give most, by a sample of the topics.

| module | idea |
|---|---|
| `sampling` | which offsets are read: blocks spread over each topic (pure) |
| `counting` | the results of the sampled rows, by key and by group of blocks (pure) |
| `scaling` | from those counts to an estimate and how far it may be off (pure) |
| `reading` | from settings and Kafka to the sampled rows, decoded by the contract |
| `shown` | the estimate as a table and as JSON |

Model: each leaf of the query is sampled by itself: each offset of its topic is read with the
probability f_i, whatever is read of other leaves. A result has one row of each leaf, so all of its
rows are in the sample with the probability f = f_1 * ... * f_m, and

    (results of the sampled rows) / f

is right on average, for any distribution of keys, for trees and for windows. How far one sample is
off is seen by taking it apart: see `scaling`.

Known limitation: where most keys have few rows, few results of m inputs have all of their rows in a
sample, and the range is wide. What is late for a window follows from the order in which the stream
reads; nothing is late here.
"""
