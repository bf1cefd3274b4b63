"""Producers: messages from a scenario or a recording, sent to Kafka."""
