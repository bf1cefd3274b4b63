"""Contracts: messages, settings, queries and journal records. Imports nothing of ours."""
