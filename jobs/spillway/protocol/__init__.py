"""The epoch protocol: pure functions from journal state and events to instructions."""
