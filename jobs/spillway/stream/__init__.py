"""The streaming job: the Spark edge that carries out the epoch protocol.

| module | idea |
|---|---|
| `service` | one run, from the journal to the last epoch |
| `run` | what a run was asked for, what it tells, how it may end |
| `start`, `genesis` | the journal's first entry, and what must still be true on later starts |
| `supervised`, `source` | Spark's query, which plans epochs; its source |
| `driver` | the protocol's instructions, carried out |
| `job`, `tasks` | an epoch as one Spark job; what its tasks are told (pure) |
| `placement` | which host each slot is pinned to |
| `worker` | what runs in Spark's workers after the shuffle |
| `commands`, `boundary` | what waits to be answered; the calendar's seal |
| `day_before` | how the rows of the session before came |
| `failures`, `troubles`, `silence` | what fails; disks, memory, clocks; silent hosts |
| `progress`, `interrupts` | a line an epoch; how it is asked to stop |

Cleanup, corrections and the proof work in Spark, too, and share:

| module | idea |
|---|---|
| `session` | Spark's sessions, and the settings that correctness rests on |
| `archive` | Spark's classes as the JVM holds them, for a quick start |
| `messages` | Kafka's messages, read in Python workers |
| `decoding` | messages in, blocks for slots out: before the shuffle |
| `pins` | how Spark is told which partition, and which host, a slot is |
| `process` | what a Python worker does for itself |
"""
