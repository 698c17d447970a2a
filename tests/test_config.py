import pytest

from mappa_core.config import ConfigError, digest, load, parse, presets, what

MINIMAL = {"name": "lab", "steps": 2, "team": "lab", "model": {"type": "lab"}}


@pytest.mark.parametrize("name", presets())
def test_every_shipped_preset_parses(name: str) -> None:
    assert load(name).name == name


def test_overrides_are_toml_values_or_text() -> None:
    config = load("lab", ["steps=3", "learn.lr=1e-5", "name=mine", "coach.sees_answer=false"])
    assert (config.steps, config.learn.lr, config.name, config.label_free) == (3, 1e-5, "mine", True)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["learn.lrr=1"], "unknown key learn.lrr"),
        (["steps=many"], "steps = 'many'"),
        (["steps=0"], "greater than or equal to 1"),
        (["steps"], "write key=value"),
        (["steps.a=1"], "not a section"),
        (["collect.top_p=0.9"], "bend the importance ratio"),
        (["collect.top_k=5"], "bend the importance ratio"),
        (["collect.temperature=0.7"], "bends the importance ratio"),
        (["model.type=gpt"], "model"),
        (["engine.pack_tokens=64"], "must hold a row"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("lab", overrides)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="lab"):
        load("nope")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no such file: nope\.toml"):
        load("nope.toml")


def test_how_is_not_what() -> None:
    """Cache keys must not change with what only says how."""
    one = parse(MINIMAL, "test")
    other = parse(MINIMAL | {"engine": {"kv_cache_gib": 2.0}, "sandbox": {"workers": 7}}, "test")
    third = parse(MINIMAL | {"engine": {"dtype": "bfloat16"}}, "test")
    assert what(one) == what(other)
    assert what(one) != what(third)
    assert digest(what(one)) == digest(what(other))
