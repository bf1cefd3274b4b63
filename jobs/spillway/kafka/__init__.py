"""Kafka's edge: the embedded broker, client options, and what the cluster says of its topics.

| module | idea |
|---|---|
| `client` | what a cluster says of itself and its topics |
| `options`, `refusals`, `patience` | a client's options; why it is refused; how long it waits |
| `reading`, `wire` | ranges of topics as columns; record batches as columns (pure) |
| `held` | whether the cluster still has what was read |
| `backlog` | what waits to be read, and since when |
| `last` | a partition's last committed record |
| `broker`, `properties` | the embedded broker, and the files that it is started with |
"""

import logging

# kafka-python logs every try to reach a broker that is away. We raise one error that says what to
# do; without a handler of its own Python would print all of them to the terminal. A program that
# configures logging sees them as before.
logging.getLogger("kafka").addHandler(logging.NullHandler())
