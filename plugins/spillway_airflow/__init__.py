"""Spillway under Airflow: timetables, operators, triggers and the page.

Airflow stays at the edge: what is decided here is when something runs, and what happens is what
`jobs` offer. Nothing here imports Spark, pandas or an exchange calendar when a DAG file is parsed.
"""
