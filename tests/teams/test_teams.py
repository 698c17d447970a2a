from pathlib import Path

import pytest

from mappa_core import teams

ROLE = '[[roles]]\nname = "one"\ntitle = "One"\nduty = "Acts."\n'


def write(folder: Path, toml: str, **prompts: str) -> Path:
    folder.mkdir()
    (folder / "team.toml").write_text(toml)
    for name, text in prompts.items():
        (folder / f"{name}.md").write_text(text)
    return folder


@pytest.mark.parametrize("name", ["lab", "mathchat", "words"])
def test_the_shipped_teams(name: str) -> None:
    team = teams.team(name)
    assert team.name == name
    assert [r.name for r in team.roles] == ["solver", "coder", "verifier"]
    assert [r.max_turns for r in team.roles] == [1, 2, 1]
    assert [r.tools for r in team.roles] == [(), ("python",), ()]
    assert "{solver.text}" not in team.role("verifier").prompt


def test_the_labs_prompts_are_short() -> None:
    team = teams.team("lab")
    assert team.role("solver").prompt == "{problem}\nPlan:"
    assert team.role("coder").follow_up == "Tool: {tool}"
    assert team.role("verifier").follow_up == "{tool}"


def test_a_new_team_is_a_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "solo", ROLE, one="Do {problem} as \\boxed{N}\n\n")
    team = teams.read(folder)
    assert team.name == "solo"
    assert team.roles[0].prompt == "Do {problem} as \\boxed{N}\n"


def test_an_unknown_team_names_those_there_are() -> None:
    with pytest.raises(teams.TeamError, match=r"unknown team 'x'; teams: .*lab.*mathchat"):
        teams.team("x")


@pytest.mark.parametrize(
    ("toml", "prompt", "message"),
    [
        (ROLE + "turns = 2\n", "{problem}", r"unknown keys \['turns'\]"),
        ('[[roles]]\nname = "one"\n', "{problem}", r"a role lacks \['duty', 'title'\]"),
        (ROLE + 'tools = ["shell"]\n', "{problem}", r"unknown tools \['shell'\]"),
        (ROLE, "{two.text}", r"role one: can't fill \['two.text'\]"),
        (ROLE, "{one.text}", r"can't fill \['one.text'\]"),
        (ROLE, "{tool}", r"can't fill \['tool'\]"),
        ("", "{problem}", r"give \[\[roles\]\] entries"),
        ("roles = [", "{problem}", "not TOML"),
    ],
)
def test_a_wrong_team_says_what_is_wrong(tmp_path: Path, toml: str, prompt: str, message: str) -> None:
    with pytest.raises(teams.TeamError, match=message):
        teams.read(write(tmp_path / "solo", toml, one=prompt))


def test_a_role_without_a_prompt(tmp_path: Path) -> None:
    with pytest.raises(teams.TeamError, match=r"write solo/one\.md"):
        teams.read(write(tmp_path / "solo", ROLE))
