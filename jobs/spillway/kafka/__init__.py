"""Kafka's edge: the embedded broker, client options, and what the cluster says of its topics."""

import logging

# kafka-python logs every try to reach a broker that is away. We raise one error that says what to
# do; without a handler of its own Python would print all of them to the terminal. A program that
# configures logging sees them as before.
logging.getLogger("kafka").addHandler(logging.NullHandler())
