"""The streaming job: the Spark edge that carries out the epoch protocol."""
