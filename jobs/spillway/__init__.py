"""The jobs: a pure core (engine, policy, protocol) and thin edges (Spark, Kafka, Delta, CLI)."""
