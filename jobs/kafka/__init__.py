"""Kafka's edge: the embedded broker, client options, and what the cluster says of its topics."""
