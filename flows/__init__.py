"""Prefect flows: the story of a run, one file per shape; `cli.py` starts them."""
