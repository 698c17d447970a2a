"""Prefect tasks: a thin wrapper per stage. What it does is in mappa_core; here it is joined, keyed and recorded."""
