"""The join engine: partition groups, runs, arrangements, the join step, cleanup. No Spark."""
