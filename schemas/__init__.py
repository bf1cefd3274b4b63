"""Contracts: what messages, settings, queries and journal records look like. Imports nothing of ours."""
