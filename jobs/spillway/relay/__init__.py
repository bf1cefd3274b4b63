"""`spillway relay`: the rows of `results`, each once, as records of a Kafka topic.

| module | idea |
|---|---|
| `encoding` | rows to keys and values of records |
| `kept` | what a relay keeps beside its rows: the position, as a record of a topic of its own |
| `outlet` | the Kafka edge: transactions, fenced by the topic's name |
| `run` | step after step, until stopped |
| `lines` | one line a step |
| `service` | all of it, put together from the settings |
"""
