import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from mappa_core import teams
from mappa_core.config import seed_from
from mappa_core.rollout import GenerateBatch, RunEpisodeCode, play, play_all
from mappa_core.types import Episode, Execution, Generation, Problem, Request, Role, Team

PROBLEM = Problem("p1", "lab", "What is 1 + 2?")
BLOCK = "```python\nprint(1 + 2)\n```"
OK = Execution("ok", 0, None, "3\n", "")
OPEN, SAY, END, ALIAS = 1, 2, 3, 2_000_000
MATHCHAT = teams.team("mathchat")


class Letters:
    """Characters as tokens. A sampled token may be a character's alias, so that encode(decode(tokens)) != tokens."""

    def open(self, message: str, /) -> tuple[int, ...]:
        return (OPEN, *map(ord, message), SAY)

    def follow(self, context: Sequence[int], message: str, /) -> tuple[int, ...]:
        return (*context, *self.open(message))

    def decode(self, tokens: Sequence[int], /) -> str:
        return "".join(chr(t % ALIAS) for t in tokens if t != END)

    def spoken(self, text: str, /) -> str:
        return text.split("</think>")[-1]


def generation(text: str, policy: str = "w0") -> Generation:
    tokens = (*(ord(c) + ALIAS for c in text), END)
    return Generation(tokens, tuple(-0.5 - i for i in range(len(tokens))), "stop", policy)


@dataclass
class Sampler:
    """Says what the script has for (role, turn), and notes what it was asked."""

    script: dict[tuple[str, int], str]
    requests: list[Request] = field(default_factory=list)

    async def __call__(self, request: Request) -> Generation:
        self.requests.append(request)
        return generation(self.script[request.role, request.turn])


@dataclass
class Runner:
    answer: Execution = OK
    ran: list[str] = field(default_factory=list)

    async def __call__(self, code: str) -> Execution:
        self.ran.append(code)
        return self.answer


def acted(sampler: Sampler, runner: Runner, team: Team = MATHCHAT, max_len: int = 100_000) -> Episode:
    speakers = {role.name: Letters() for role in team.roles}
    seeds = partial(seed_from, 0, 1, PROBLEM.id, 0)
    return asyncio.run(play(PROBLEM, 0, team, speakers, sampler, runner, max_len, seeds))


def no_seed(_: str, __: int) -> int:
    return 0


def chain(**texts: str) -> dict[tuple[str, int], str]:
    """A script from solver=, coder=, coder1= (its second turn), verifier=."""
    said = {"solver": "it is 3", "coder": "no code", "verifier": "\\boxed{3}", **texts}
    return {(name.rstrip("1"), int(name.endswith("1"))): text for name, text in said.items()}


def shown(request: Request) -> str:
    return Letters().decode(request.prompt_tokens)


def test_an_episode_keeps_what_was_sampled() -> None:
    sampler, runner = Sampler(chain(coder=f" so\n{BLOCK}\n", coder1="it prints 3 ")), Runner()
    episode = acted(sampler, runner)
    assert [a.id for a in episode.actions] == [
        "p1#0/solver/0", "p1#0/coder/0", "p1#0/coder/1", "p1#0/verifier/0"
    ]  # fmt: skip
    for action, request in zip(episode.actions, sampler.requests, strict=True):
        said = generation(sampler.script[action.role, action.turn])
        assert (action.output_tokens, action.logprobs, action.policy) == (said.tokens, said.logprobs, "w0")
        assert (action.prompt_tokens, action.seed) == (request.prompt_tokens, request.seed)
        assert action.text == sampler.script[action.role, action.turn]
    assert (episode.id, episode.problem, episode.sample, episode.stopped) == ("p1#0", PROBLEM, 0, "finished")


def test_a_later_turn_continues_the_sampled_tokens() -> None:
    sampler = Sampler(chain(coder=BLOCK, coder1="done"))
    episode = acted(sampler, Runner())
    first, second = (a for a in episode.actions if a.role == "coder")
    context = first.prompt_tokens + first.output_tokens
    assert second.prompt_tokens == context + Letters().open(MATHCHAT.role("coder").follow_up.replace("{tool}", "3"))


def test_the_coder_may_correct_itself_once_and_code_of_its_last_turn_runs() -> None:
    sampler, runner = Sampler(chain(coder=BLOCK, coder1="```python\nprint(4)\n```")), Runner()
    episode = acted(sampler, runner)
    assert runner.ran == ["print(1 + 2)\n", "print(4)\n"]
    assert [a.execution for a in episode.actions] == [None, OK, OK, None]


def test_a_turn_without_code_ends_the_role() -> None:
    sampler, runner = Sampler(chain(coder="I trust it")), Runner()
    episode = acted(sampler, runner)
    assert [(a.role, a.turn) for a in episode.actions] == [("solver", 0), ("coder", 0), ("verifier", 0)]
    assert runner.ran == []


def test_code_runs_only_for_a_role_with_the_tool_and_only_where_it_is_spoken() -> None:
    runner = Runner()
    acted(Sampler(chain(solver=BLOCK, coder=f"{BLOCK}</think>nothing to run", verifier=BLOCK)), runner)
    assert runner.ran == []
    acted(Sampler(chain(coder=f"{BLOCK}</think>```python\n5\n```", coder1="done")), runner)
    assert runner.ran == ["5\n"]


def test_mathchat_hands_over_what_the_paper_says() -> None:
    sampler = Sampler(chain(solver="<think>SOLVED", coder=f"CODED\n{BLOCK}", coder1="CONCLUDED"))
    acted(sampler, Runner(replace(OK, stdout="PRINTED\n")))
    solver, coder, second, verifier = map(shown, sampler.requests)
    assert all(PROBLEM.prompt in prompt for prompt in (solver, coder, verifier))
    assert "<think>SOLVED" in coder
    assert "PRINTED" not in coder
    assert "PRINTED" in second
    assert "CONCLUDED" in verifier
    assert "PRINTED" in verifier
    assert "SOLVED" not in verifier
    assert "CODED" not in verifier
    assert "Problem Solver (you)" in solver
    assert "Code Executor (you)" in coder
    assert "Verifier (you)" in verifier


def test_what_did_not_happen_is_said_neutrally() -> None:
    sampler = Sampler(chain(coder="no code"))
    acted(sampler, Runner())
    assert "Its program's output:\n(nothing)\n" in shown(sampler.requests[-1])


def test_the_tools_last_answer_outlives_a_turn_without_code() -> None:
    sampler = Sampler(chain(coder=BLOCK, coder1="no more code"))
    acted(sampler, Runner())
    assert "Its program's output:\n3\n" in shown(sampler.requests[-1])


def test_prompts_are_filled_in_one_pass() -> None:
    sampler = Sampler(chain(coder="{problem} {solver.text} {coder.tool} {tool}"))
    acted(sampler, Runner())
    verifier = shown(sampler.requests[-1])
    assert "{problem} {solver.text} {coder.tool} {tool}" in verifier
    assert "it is 3" not in verifier
    sampler = Sampler(chain(coder=BLOCK, coder1="done"))
    acted(sampler, Runner(replace(OK, stdout="{tool}{problem}")))
    assert "output:\n{tool}{problem}\n" in shown(sampler.requests[2])


def test_a_placeholder_that_means_nothing_is_an_error() -> None:
    for prompt, follow_up in (("{tool}", "{tool}"), ("{solver.code}", "{tool}"), ("{problem}", "{problem}")):
        team = Team("odd", (Role("coder", "", "", prompt, follow_up, ("python",), 2),))
        with pytest.raises(ValueError, match="can't fill"):
            acted(Sampler(chain(coder=BLOCK)), Runner(), team)


def test_a_prompt_without_room_for_a_token_ends_the_episode() -> None:
    everything = Sampler(chain(coder=BLOCK, coder1="done"))
    acted(everything, Runner())
    coder, second = len(everything.requests[1].prompt_tokens), len(everything.requests[2].prompt_tokens)
    episode = acted(Sampler(everything.script), Runner(), max_len=coder)
    assert [a.role for a in episode.actions] == ["solver"]
    assert episode.stopped == "context"
    episode = acted(Sampler(everything.script), Runner(), max_len=second)
    assert [a.role for a in episode.actions] == ["solver", "coder"]
    assert episode.stopped == "context"
    assert episode.actions[-1].execution == OK
    assert acted(Sampler(everything.script), Runner(), max_len=second + 1).actions[2].turn == 1


def test_truncation_is_recorded() -> None:
    async def cut(_: Request) -> Generation:
        return replace(generation("so ```python\n5"), finish_reason="length")

    speakers = {role.name: Letters() for role in MATHCHAT.roles}
    episode = asyncio.run(play(PROBLEM, 0, MATHCHAT, speakers, cut, Runner(), 9999, no_seed))
    assert [(a.finish_reason, a.execution) for a in episode.actions] == [("length", None)] * 3


def test_a_generation_without_tokens_or_logprobs_is_refused() -> None:
    for tokens, logprobs in (((), ()), ((5, END), (-1.0,))):

        async def odd(_: Request) -> Generation:
            return Generation(tokens, logprobs, "stop", "w0")  # noqa: B023

        with pytest.raises(ValueError, match="p1#0/solver/0"):
            asyncio.run(play(PROBLEM, 0, MATHCHAT, {"solver": Letters()}, odd, Runner(), 9999, no_seed))


def test_seeds_depend_on_their_place_and_on_nothing_else() -> None:
    place = (0, 1, "p1", 0, "solver", 0)
    others = [(1, 1, "p1", 0, "solver", 0), (0, 2, "p1", 0, "solver", 0), (0, 1, "p2", 0, "solver", 0),
              (0, 1, "p1", 1, "solver", 0), (0, 1, "p1", 0, "coder", 0), (0, 1, "p1", 0, "solver", 1)]  # fmt: skip
    assert seed_from(*place) == seed_from(*place) == 166011207514788
    assert len({seed_from(*p) for p in (place, *others)}) == 7
    assert all(0 <= seed_from(*p) < 2**48 for p in others)


# lockstep


@dataclass
class Batches:
    """A sampler for many episodes: half of the coders write code, and half of these a second time."""

    seen: list[tuple[str, list[tuple[str, int]]]] = field(default_factory=list)

    async def __call__(self, role: str, requests: list[Request]) -> list[Generation]:
        self.seen.append((role, [(r.episode, r.turn) for r in requests]))
        await asyncio.sleep(0)
        assert {r.role for r in requests} == {role}
        return [generation(self.says(r)) for r in requests]

    def says(self, request: Request) -> str:
        if request.role != "coder" or request.seed % 2:
            return f"{request.role} {request.seed}"
        return f"```python\n{request.seed}\n```"


def problems(n: int) -> list[Problem]:
    return [Problem(f"p{i}", "lab", f"What is {i} + {i}?") for i in range(n)]


@dataclass
class Slow:
    """Programs that take their time, another time for each seed."""

    delays: int = 0
    running: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.delays)

    async def __call__(self, episode: str, code: str) -> Execution:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.rng.random() * 0.01)
        self.running -= 1
        return replace(OK, stdout=f"{episode}: {code}", seconds=self.rng.random())


async def together(
    batches: GenerateBatch,
    run_code: RunEpisodeCode,
    asked: Sequence[Problem],
    step: int = 1,
    sandboxes: int = 3,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Two episodes of each problem by the mathchat team."""
    speakers = {role.name: Letters() for role in MATHCHAT.roles}
    return await play_all(
        asked, 2, MATHCHAT, speakers, batches, run_code,
        max_len=100_000, seed=0, step=step, sandboxes=sandboxes, on_episode=on_episode,
    )  # fmt: skip


def test_waves_are_one_role_in_team_order_and_in_fixed_order() -> None:
    batches = Batches()
    episodes = asyncio.run(together(batches, Slow(), problems(6)))
    assert [role for role, _ in batches.seen] == ["solver", "coder", "coder", "verifier"]
    everyone = [f"p{i}#{j}" for i in range(6) for j in range(2)]
    assert [e.id for e in episodes] == everyone
    for role, asked in (batches.seen[0], batches.seen[1], batches.seen[3]):
        assert asked == [(e, 0) for e in everyone], role
    second = [e for e, _ in batches.seen[2][1]]
    assert {turn for _, turn in batches.seen[2][1]} == {1}
    assert second == [e for e in everyone if e in second]
    assert 0 < len(second) < len(everyone)


def test_batches_and_episodes_do_not_depend_on_how_long_programs_run() -> None:
    first, again = Batches(), Batches()
    played = asyncio.run(together(first, Slow(1), problems(6)))
    assert played == asyncio.run(together(again, Slow(2), problems(6), sandboxes=1))
    assert first.seen == again.seen
    assert played != asyncio.run(together(Batches(), Slow(1), problems(6), step=2))


def test_episodes_stream_as_they_end() -> None:
    ended: list[str] = []
    noted: list[int] = []

    async def batch(role: str, requests: list[Request]) -> list[Generation]:
        noted.append(len(ended))
        return [generation(role) for _ in requests]

    script = Team("two", (Role("a", "", "", "{problem}"), Role("b", "", "", "{a.text}" + "x" * 50)))
    asked = [Problem("short", "lab", "?"), Problem("long", "lab", "?" * 90)]
    speakers = {"a": Letters(), "b": Letters()}
    episodes = asyncio.run(
        play_all(asked, 1, script, speakers, batch, Slow(), max_len=90, seed=0, step=0,
                 sandboxes=1, on_episode=lambda e: ended.append(e.id))
    )  # fmt: skip
    assert [e.stopped for e in episodes] == ["finished", "context"]
    assert ended == ["long#0", "short#0"]
    assert noted == [1, 1]


def test_no_more_programs_run_at_a_time_than_asked_for() -> None:
    programs = Slow()
    asyncio.run(together(Batches(), programs, problems(8), sandboxes=2))
    assert programs.most == 2


def test_no_problems_are_no_episodes_and_a_problem_twice_is_refused() -> None:
    assert asyncio.run(together(Batches(), Slow(), [])) == []
    with pytest.raises(ValueError, match="twice"):
        asyncio.run(together(Batches(), Slow(), [PROBLEM, PROBLEM]))


class BrokenError(RuntimeError):
    pass


async def fails_for(what: str) -> tuple[type[BaseException], int]:
    """The error that comes out when `what` fails in the midst of play, and how many tasks it leaves behind."""

    async def batch(role: str, requests: list[Request]) -> list[Generation]:
        if what == "generate" and role == "verifier":
            raise BrokenError
        said = await Batches()(role, requests)
        return said[1:] if what == "missing" and role == "coder" else said

    async def run_code(episode: str, _: str) -> Execution:
        if what == "run_code" and episode != "p0#0":
            raise BrokenError
        await asyncio.sleep(60 if what == "run_code" else 0)
        return OK

    def note(_: Episode) -> None:
        if what == "on_episode":
            raise BrokenError

    with pytest.raises((BrokenError, ValueError)) as caught:
        await asyncio.wait_for(together(batch, run_code, problems(6), on_episode=note), 5)
    return caught.type, len(asyncio.all_tasks())


@pytest.mark.parametrize("what", ["generate", "run_code", "on_episode", "missing"])
def test_an_error_ends_all_episodes_at_once_and_comes_out_as_it_is(what: str) -> None:
    error, left = asyncio.run(fails_for(what))
    assert error is (ValueError if what == "missing" else BrokenError)
    assert left == 1


def test_a_cancelled_play_leaves_no_task_behind() -> None:
    async def cancelled() -> int:
        async def stuck(_: str, __: list[Request]) -> list[Generation]:
            await asyncio.sleep(60)
            return []

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(together(stuck, Slow(), problems(2)), 0.05)
        return len(asyncio.all_tasks())

    assert asyncio.run(cancelled()) == 1
