"""Base: the weights every role starts from, and is held near to. Those we make are made once and kept by their digest.

A lab base is believed only if it passes its gate: weak enough that there is something to learn, and able to copy
digits, so that what is learned is about blame, not about format.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from mappa_core.chat import Chat
from mappa_core.config import LabModel, LocalModel, PackagedModel, digest, what
from mappa_core.engine import gguf, weights
from mappa_core.problems import lab_demos, lab_vocab, sets
from mappa_core.store import Manifest, code_digest
from mappa_core.types import Policy
from tasks import play
from tasks.grade import graded, rates
from tasks.run import Run
from tasks.stage import Made, stage

if TYPE_CHECKING:
    from mappa_core.engine.warmstart import TokenRow

CODE = (
    "mappa_core.arithmetic",
    "mappa_core.chat",
    "mappa_core.engine.warmstart",
    "mappa_core.problems.lab",
    "mappa_core.problems.lab_demos",
    "mappa_core.problems.lab_vocab",
    "tasks.base",
)
DEMONSTRATIONS = 6000
"""Problems played for the warm start; its steps draw rows from them."""
REFERENCES = 200
"""Problems on which copying is measured."""


def _key(run: Run, _: int) -> str:
    if isinstance(run.config.model, PackagedModel):
        return digest(["base", what(run.config.model), gguf.package_version(), code_digest("mappa_core.engine.gguf")])
    return digest(["base", what(run.config.model), run.config.team, code_digest(*CODE)])


def _compute(run: Run, _: int) -> Made:
    directory = run.store.scratch("base") / "base"
    if isinstance(run.config.model, LabModel):
        facts = {"ceiling": _warm_start(run, run.config.model, directory)}
    else:
        gguf.convert(gguf.package_file(), directory)
        facts = {"package": gguf.package_version()}
    return Made([run.store.adopt("base", directory)], facts)


def _warm_start(run: Run, model: LabModel, directory: Path) -> float:
    """Makes the lab's base and returns its ceiling; imports torch only here, so that a stored base is there sooner."""
    from mappa_core.engine import warmstart

    lab_vocab.build(directory, run.team)
    chat, tokenizer = Chat(directory), Tokenizer.from_file(str(directory / "tokenizer.json"))
    demos = lab_demos.demonstrations(model.warm_seed, DEMONSTRATIONS, model.weakness, run.team)
    rows = [_row(chat, tokenizer, turns) for _, turns in demos]
    size, eos = tokenizer.get_vocab_size(), chat.eos_ids[0]
    shape = warmstart.Shape(
        vocabulary=size, eos=eos, pad=_id(tokenizer, lab_vocab.PAD), hidden=model.hidden, layers=model.layers
    )
    recipe = warmstart.Recipe(steps=model.warm_steps, seed=model.warm_seed)

    def progress(done: int, total: int, loss: float) -> None:
        run.listener("base", 0, {"done": done, "total": total, "loss": loss})

    warmstart.train(rows, shape, recipe, directory, progress)
    right = lab_demos.references(model.warm_seed, REFERENCES, run.team)
    digits = frozenset(_id(tokenizer, figure) for figure in "0123456789")
    return warmstart.copied(directory, [_row(chat, tokenizer, turns) for _, turns in right], digits)


_build = stage("base", _key, _compute)


def base(run: Run) -> tuple[Policy, ...]:
    """Version 0 of each role's policy: the base itself. Sets `run.base`."""
    if isinstance(run.config.model, LocalModel):
        path = Path(run.config.model.path).absolute()
    else:
        path = run.store.path(_build(run, 0)["base"])
    found = weights.digest(path)
    run.base = tuple(Policy(role.name, 0, str(path), found) for role in run.team.roles)
    return run.base


def _gate_key(run: Run, _: int, policies: tuple[Policy, ...], ceiling: float) -> str:
    code = code_digest("mappa_core.graders.lab", "tasks.base")
    return digest(["gate", run.train.digest, run.config.collect.max_new_tokens, play.key(run, policies), ceiling, code])


def _gate_compute(run: Run, _: int, policies: tuple[Policy, ...], ceiling: float) -> Made:
    from mappa_core.graders.lab import check_base

    problems = sets.draw(run.train.problems, 0, 100, seed=0)
    episodes = play.play(run, policies, problems, samples=2, temperature=1.0, seed=0, step=0)
    found = rates(episodes, graded(episodes, run.train.keys))
    check_base(success=found["success"], plan_right=found["solver/plan_right"], ceiling=ceiling)
    return Made([], {"rates": found, "ceiling": ceiling})


_gate = stage("gate", _gate_key, _gate_compute)


def gate(run: Run, policies: tuple[Policy, ...]) -> Manifest | None:
    """Checks a lab base, once per digest; ConfigError says what is off. Other models have no gate."""
    if not isinstance(run.config.model, LabModel):
        return None
    return _gate(run, 0, policies, run.dir.manifest(0, "base").facts["ceiling"])


def _id(tokenizer: Tokenizer, symbol: str) -> int:
    found = tokenizer.token_to_id(symbol)
    assert found is not None, symbol
    return found


def _row(chat: Chat, tokenizer: Tokenizer, turns: lab_demos.Turns) -> TokenRow:
    """A conversation as tokens: responses count fully in the loss, what the model is told a little."""
    from mappa_core.engine.warmstart import PROMPT_WEIGHT, TokenRow

    tokens: tuple[int, ...] = ()
    masks: list[float] = []
    for message, response in turns:
        context = chat.follow(tokens, message) if tokens else chat.open(message)
        masks += [PROMPT_WEIGHT] * (len(context) - len(tokens))
        said = (*tokenizer.encode(response, add_special_tokens=False).ids, chat.eos_ids[0])
        tokens, masks = (*context, *said), [*masks, *[1.0] * len(said)]
    return TokenRow(tokens, tuple(masks))
