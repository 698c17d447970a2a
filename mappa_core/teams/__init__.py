"""Teams as data: a folder here is a team, `team.toml` names its roles in order, and the prompts lie beside it as .md.

`ROLE.md` is a role's prompt, `ROLE.follow_up.md` (where there is one) what it is told after its code ran; one final
newline of a file is not part of the prompt. A new team is a new folder that nothing else has to know. Refused: unknown
keys, and a placeholder of a role that has not acted yet.
"""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal, cast

from mappa_core.errors import UserError
from mappa_core.types import Role, Team

KEYS = {"name", "title", "duty", "tools", "max_turns"}
PLACEHOLDER = re.compile(r"\{(problem|tool|[a-z_]+\.[a-z_]+)\}")
"""What is filled in; other braces, as in \\boxed{...}, are text."""


class TeamError(UserError, ValueError):
    """A team that can't be read; the message is one line and says what to do."""


def names() -> list[str]:
    """Names of the teams there are, sorted."""
    return sorted(d.name for d in resources.files(__name__).iterdir() if (d / "team.toml").is_file())


def team(name: str) -> Team:
    """The team called `name`; TeamError where there is none or its files are wrong."""
    if name not in names():
        raise TeamError(f"unknown team {name!r}; teams: {', '.join(names())}, or add a folder to mappa_core/teams")
    return read(resources.files(__name__) / name)


def read(folder: Traversable) -> Team:
    """The team in `folder`: team.toml and its prompts; TeamError says what is wrong."""
    try:
        data = tomllib.loads((folder / "team.toml").read_text())
    except tomllib.TOMLDecodeError as error:
        raise TeamError(f"{folder.name}/team.toml is not TOML: {error}") from error
    entries = data.pop("roles", [])
    if data or not entries:
        raise TeamError(f"{folder.name}/team.toml: give [[roles]] entries and nothing else; found {sorted(data)}")
    roles: list[Role] = []
    for entry in entries:
        role = _role(folder, entry)
        _check(role, acted=[r.name for r in roles])
        roles.append(role)
    return Team(folder.name, tuple(roles))


def _role(folder: Traversable, entry: dict[str, Any]) -> Role:
    where = f"{folder.name}/team.toml"
    if unknown := entry.keys() - KEYS:
        raise TeamError(f"{where}: unknown keys {sorted(unknown)}; a role has {sorted(KEYS)}")
    if missing := {"name", "title", "duty"} - entry.keys():
        raise TeamError(f"{where}: a role lacks {sorted(missing)}")
    name, tools = entry["name"], entry.get("tools", [])
    if wrong := set(tools) - {"python"}:
        raise TeamError(f"{where}: {name} has unknown tools {sorted(wrong)}; there is python")
    prompt = folder / f"{name}.md"
    if not prompt.is_file():
        raise TeamError(f"{where}: {name} has no prompt; write {folder.name}/{name}.md")
    follow_up = folder / f"{name}.follow_up.md"
    return Role(
        name=name,
        title=entry["title"],
        duty=entry["duty"],
        prompt=_text(prompt),
        follow_up=_text(follow_up) if follow_up.is_file() else "{tool}",
        tools=tuple(cast(Literal["python"], tool) for tool in tools),
        max_turns=entry.get("max_turns", 1),
    )


def _text(file: Traversable) -> str:
    return file.read_text().removesuffix("\n")


def _check(role: Role, acted: list[str]) -> None:
    """Refuses placeholders that could not be filled when `role` acts after the roles `acted`."""
    may = {"problem", *(f"{r}.text" for r in acted), *(f"{r}.tool" for r in acted)}
    for text, allowed in ((role.prompt, may), (role.follow_up, {"tool"})):
        if wrong := set(PLACEHOLDER.findall(text)) - allowed:
            raise TeamError(f"role {role.name}: can't fill {sorted(wrong)}; it may use {sorted(allowed)}")
