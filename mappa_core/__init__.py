"""The library under the flows: types, teams, learning, engines. Knows neither Prefect, MLflow nor DVC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mappa_core.runs import load_run

__all__ = ["load_run"]


def __getattr__(name: str) -> Any:
    """`load_run`, imported when it is asked for: parts of the library start faster without pydantic."""
    if name != "load_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mappa_core.runs import load_run

    return load_run
