"""Team play: roles act in order, their code runs, and every action keeps the tokens it was made of.

`play` is one episode; `play_all` plays many in lockstep: the sampler is asked for one role at a time, in an order that
does not depend on how long any program ran. Knows no engine, template or sandbox: they come in as callables. Refuses to
hide a failed call: its error ends the play.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from mappa_core.config import seed_from
from mappa_core.teams.language import NOTHING, fill, python_code, tool_answer
from mappa_core.types import Action, Episode, Execution, Generation, Problem, Request, Role, Team


class Speaker(Protocol):
    """A role's model as rollout knows it: messages to tokens, tokens to text (`chat.Chat` is one)."""

    def open(self, message: str, /) -> tuple[int, ...]: ...

    def follow(self, context: Sequence[int], message: str, /) -> tuple[int, ...]: ...

    def decode(self, tokens: Sequence[int], /) -> str: ...

    def spoken(self, text: str, /) -> str: ...


Generate = Callable[[Request], Awaitable[Generation]]
RunCode = Callable[[str], Awaitable[Execution]]
GenerateBatch = Callable[[str, list[Request]], Awaitable[list[Generation]]]
"""(role, requests) -> generations, in the order of the requests."""
RunEpisodeCode = Callable[[str, str], Awaitable[Execution]]
"""(episode, code): the programs of an episode share a workspace."""


def episode_id(problem: Problem, sample: int) -> str:
    """PROBLEM#SAMPLE."""
    return f"{problem.id}#{sample}"


async def play(
    problem: Problem,
    sample: int,
    team: Team,
    speakers: Mapping[str, Speaker],
    generate: Generate,
    run_code: RunCode,
    max_len: int,
    seeds: Callable[[str, int], int],
) -> Episode:
    """One episode of `team`; `speakers` by role name, `max_len` in tokens, `seeds(role, turn)`.

    A role acts until it says nothing to run or has had its turns. A prompt of max_len tokens or more ends the episode.
    """
    episode = Episode(id=episode_id(problem, sample), problem=problem, sample=sample, actions=())
    for role in team.roles:
        for turn in range(role.max_turns):
            prompt = _prompt(speakers[role.name], role, episode, turn)
            if len(prompt) >= max_len:
                return replace(episode, stopped="context")
            request = Request(episode.id, role.name, turn, prompt, seeds(role.name, turn))
            action = _action(request, await generate(request), speakers[role.name])
            code = python_code(speakers[role.name].spoken(action.text)) if "python" in role.tools else None
            if code is not None:
                action = replace(action, execution=await run_code(code))
            episode = replace(episode, actions=(*episode.actions, action))
            if code is None:
                break
    return episode


def _prompt(speaker: Speaker, role: Role, episode: Episode, turn: int) -> tuple[int, ...]:
    """What `role` sees at `turn`: later turns continue its last action's tokens."""
    if turn == 0:
        return speaker.open(fill(role.prompt, partial(_told, episode)))
    last = episode.actions[-1]
    return speaker.follow(last.prompt_tokens + last.output_tokens, fill(role.follow_up, partial(_tool, [last])))


def _told(episode: Episode, placeholder: str) -> str:
    """What stands for {problem}, {ROLE.text} or {ROLE.tool}."""
    if placeholder == "problem":
        return episode.problem.prompt
    role, _, what = placeholder.partition(".")
    actions = [a for a in episode.actions if a.role == role]
    match what:
        case "text":
            return actions[-1].text if actions else NOTHING
        case "tool":
            return _tool(actions, "tool")
    raise ValueError(f"can't fill {{{placeholder}}}; a prompt may use {{problem}}, {{ROLE.text}} and {{ROLE.tool}}")


def _tool(actions: Sequence[Action], placeholder: str) -> str:
    """The last answer that the tool gave to `actions`."""
    if placeholder != "tool":
        raise ValueError(f"can't fill {{{placeholder}}}; a follow-up may use {{tool}}")
    return next((tool_answer(a.execution) for a in reversed(actions) if a.execution is not None), NOTHING)


def _action(request: Request, generation: Generation, speaker: Speaker) -> Action:
    identity = f"{request.episode}/{request.role}/{request.turn}"
    if not generation.tokens or len(generation.tokens) != len(generation.logprobs):
        sizes = f"{len(generation.tokens)} tokens and {len(generation.logprobs)} logprobs"
        raise ValueError(f"the sampler gave {identity} {sizes}; it must give a token or more, and a logprob for each")
    return Action(
        id=identity,
        role=request.role,
        turn=request.turn,
        seed=request.seed,
        prompt_tokens=request.prompt_tokens,
        output_tokens=generation.tokens,
        logprobs=generation.logprobs,
        text=speaker.decode(generation.tokens),
        finish_reason=generation.finish_reason,
        policy=generation.policy,
    )


async def play_all(
    problems: Sequence[Problem],
    samples: int,
    team: Team,
    speakers: Mapping[str, Speaker],
    generate_batch: GenerateBatch,
    run_code: RunEpisodeCode,
    *,
    max_len: int,
    seed: int,
    step: int,
    sandboxes: int,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """`samples` episodes of each problem in lockstep, ordered (problem, sample); `on_episode` gets each as it ends.

    At most `sandboxes` programs run at a time. The first error of a call ends all episodes and is raised.
    """
    if len({p.id for p in problems}) != len(problems):
        raise ValueError("a problem occurs twice; give each once and raise the number of samples")
    seats = [(problem, sample) for problem in problems for sample in range(samples)]
    waves = _Waves(team, generate_batch, len(seats))
    room = asyncio.Semaphore(sandboxes)

    async def run(episode: str, code: str) -> Execution:
        async with room:
            return await run_code(episode, code)

    async def one(seat: int, problem: Problem, sample: int) -> Episode:
        ask, run_own = partial(waves.ask, seat), partial(run, episode_id(problem, sample))
        seeds = partial(seed_from, seed, step, problem.id, sample)
        episode = await play(problem, sample, team, speakers, ask, run_own, max_len, seeds)
        if on_episode is not None:
            on_episode(episode)
        waves.leave()
        return episode

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(seat, *who)) for seat, who in enumerate(seats)]
            await waves.serve()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the first one is the cause; the group would bury its message
    return [task.result() for task in tasks]


class _Waves:
    """The barrier of lockstep: when every live episode waits, the requests of the earliest waiting role are one batch.

    So a sampler that swaps weights swaps once a wave, and batches don't depend on which program ended first.
    """

    def __init__(self, team: Team, generate_batch: GenerateBatch, live: int) -> None:
        self._order = [role.name for role in team.roles]
        self._generate_batch = generate_batch
        self._live = live
        self._waiting: dict[int, tuple[Request, asyncio.Future[Generation]]] = {}
        self._settled = asyncio.Event()

    async def ask(self, seat: int, request: Request) -> Generation:
        answer: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting[seat] = request, answer
        self._look()
        return await answer

    def leave(self) -> None:
        self._live -= 1
        self._look()

    def _look(self) -> None:
        if len(self._waiting) == self._live:
            self._settled.set()

    async def serve(self) -> None:
        """Serves wave after wave until no episode is left."""
        while self._live:
            await self._settled.wait()
            self._settled.clear()
            if self._waiting:
                await self._wave()

    async def _wave(self) -> None:
        role = min((request.role for request, _ in self._waiting.values()), key=self._order.index)
        seats = sorted(seat for seat, (request, _) in self._waiting.items() if request.role == role)
        asked = [self._waiting.pop(seat) for seat in seats]
        generations = await self._generate_batch(role, [request for request, _ in asked])
        for (_, answer), generation in zip(asked, generations, strict=True):
            answer.set_result(generation)
