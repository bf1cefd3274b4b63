"""The rebalancing controller: reads statistics and journal, appends commands. Imports no Spark."""
