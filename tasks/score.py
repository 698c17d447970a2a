"""Score: the coach's verdict on every action, begun on each episode as it finishes; then what it all adds up to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import fmean

from mappa_core.coach.rubric import RubricCoach
from mappa_core.coach.shuffle import shuffled
from mappa_core.config import Coach, digest, seed_from, what
from mappa_core.errors import UserError
from mappa_core.runs import EPISODES, VERDICTS
from mappa_core.store import Manifest, code_digest
from mappa_core.types import Episode, Scored, Unscored, Verdict
from tasks.run import Run
from tasks.stage import Made, stage

Ask = Callable[[Episode], list[Verdict]]


class ScoreError(UserError, RuntimeError):
    """Too many actions without a score; the message says how many, why, and what to do."""


class Scoring:
    """The coach at work beside the collection: `put` an episode as it finishes, take all verdicts at the end.

    A context manager. An episode that was never put (its collection was reused) is scored when it is asked for.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coach")
        self._futures: dict[str, Future[list[Verdict]]] = {}

    def put(self, episode: Episode) -> None:
        """Starts scoring `episode`."""
        self._futures[episode.id] = self._pool.submit(self._ask, episode)

    def verdicts(self, episodes: list[Episode]) -> list[Verdict]:
        """The verdicts of all actions, in order; the coach's error, if it raised one."""
        for episode in episodes:
            if episode.id not in self._futures:
                self.put(episode)
        return [v for episode in episodes for v in self._futures.pop(episode.id).result()]

    def __enter__(self) -> Scoring:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def scoring(run: Run) -> Scoring:
    """The configured coach, ready to score; it gets a Key only where the config says so."""
    coach = RubricCoach(run.config.coach.sees_answer)
    keys = run.train.keys if run.config.coach.sees_answer else {}
    return Scoring(lambda episode: coach(episode, keys.get(episode.problem.id)))


def check_unscored(verdicts: list[Verdict], coach: Coach) -> None:
    """ScoreError where more actions than coach.unscored_limit allows have no score."""
    causes = [v.cause for v in verdicts if isinstance(v, Unscored)]
    if len(causes) > coach.unscored_limit * len(verdicts):
        most = max(set(causes), key=causes.count)
        raise ScoreError(
            f"{len(causes)} of {len(verdicts)} actions are unscored; coach.unscored_limit is {coach.unscored_limit}; "
            f"most often: {most}"
        )


def _key(run: Run, step: int, episodes: Manifest, scoring: Scoring) -> str:
    config = run.config
    seen = run.train.digest if config.coach.sees_answer else ""
    rubric = RubricCoach(config.coach.sees_answer).digest()
    code = code_digest("mappa_core.coach.shuffle", "tasks.score")
    settings = [config.seed, step, what(config.coach)]
    return digest(["score", settings, episodes[EPISODES].digest, seen, rubric, code])


def _compute(run: Run, step: int, episodes: Manifest, scoring: Scoring) -> Made:
    verdicts = scoring.verdicts(run.store.rows(episodes[EPISODES], Episode))
    if run.config.coach.ablation == "shuffled":
        verdicts = shuffled(verdicts, seed=seed_from("shuffled", run.config.seed, step))
    check_unscored(verdicts, run.config.coach)
    facts = {
        "scored": sum(isinstance(v, Scored) for v in verdicts),
        "unscored": sum(isinstance(v, Unscored) for v in verdicts),
        "calls": 0,
        "by_role": {role.name: _mean(verdicts, role.name) for role in run.team.roles},
    }
    return Made([run.store.put_rows(VERDICTS, Verdict, verdicts)], facts)


def _mean(verdicts: list[Verdict], role: str) -> float | None:
    values = [v.value for v in verdicts if isinstance(v, Scored) and v.action.rsplit("/", 2)[1] == role]
    return fmean(values) if values else None


score = stage("score", _key, _compute, retries=1)
