"""What mappa's engines cost beside the libraries they are made of, on the standard smol step's sizes.

`python bench/engines.py [--repeat N] [--model DIR]`: prints a table and, as its last line, JSON. Medians of paired
repetitions in one run, because an absolute time means little on a shared machine.

Rollout: seconds in which the sampler's engine was busy, against `vllm.LLM.generate` on the same engine with the same
prompts, SamplingParams and threads; then the same beside a busy neighbour. Update: old and reference logprobs and the
optimizer steps of one policy through the trainer, against a bare loop on the same DeepSpeed engines that does the same
forward and backward passes on batches that were packed beforehand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from mappa_core import config as configs
from mappa_core.chat import Chat
from mappa_core.engine import fleet, gguf, weights
from mappa_core.engine.trainer import Trainer
from mappa_core.learn import plan
from mappa_core.problems import sets
from mappa_core.types import Generation, Policy, Request, Row, Sample

EPISODES, NEW_TOKENS, ROLE = 16, 256, "solver"
LIMITS = {"rollout": 1.15, "rollout_busy": 2.0, "update": 1 / 0.85, "padding": 0.05}
NEIGHBOUR = "import torch; torch.set_num_threads(2); a = torch.rand(1500, 1500)\nwhile True: a @ a"


def main(model: Path | None, repeat: int) -> int:
    config = configs.load("smol")
    with tempfile.TemporaryDirectory() as temporary:
        base = model or _converted(Path(temporary))
        policy = Policy(ROLE, 0, str(base), weights.digest(base))

        def trainer(cpus: float, threads: int) -> Trainer:
            return Trainer.start((policy,), (policy,), config.learn, config.engine, 1000, cpus, threads)

        with fleet.start(base, config.engine, trainer, lambda what: print(what, file=sys.stderr)) as started:
            requests, generations, found = _rollout(started, policy, config, repeat)
            found |= _update(started.trainer, config, _rows(requests, generations), repeat)
    for name, limit in LIMITS.items():
        print(f"{name:14} {found[name]:6.3f}   limit {limit:.3f}")
    print(json.dumps(found))
    return 0


def _converted(directory: Path) -> Path:
    gguf.convert(gguf.package_file(), directory / "base")
    return directory / "base"


def _requests(base: Path, config: configs.ExperimentConfig) -> list[Request]:
    chat, problems = Chat(base), sets.read(Path("data"), config.data.train).problems
    return [Request(p.id, ROLE, 0, chat.open(p.prompt), seed) for seed, p in enumerate(problems[:EPISODES])]


def _rollout(started: Any, policy: Policy, config: configs.ExperimentConfig, repeat: int) -> Any:
    sampler, requests = started.sampler, _requests(Path(policy.path), config)
    eos = Chat(policy.path).eos_ids

    def ours() -> tuple[float, list[Generation]]:
        sampler.serve((policy,))
        before = sampler.usage
        out = asyncio.run(sampler.generate(ROLE, requests, NEW_TOKENS, 1.0, eos))
        return sampler.usage.generate_s - before.generate_s, out

    def raw() -> float:
        prompts = [list(r.prompt_tokens) for r in requests]
        call = sampler._actor.__ray_call__.remote(_raw_generate, prompts, [r.seed for r in requests], list(eos))
        return ray.get(call)

    ours()  # warm
    pairs = [(ours()[0], raw()) for _ in range(repeat)]
    with _neighbour():
        busy = [ours()[0] for _ in range(repeat)]
    generations = ours()[1]
    quiet = statistics.median(a for a, _ in pairs)
    tokens = sum(len(g.tokens) for g in generations)
    return (
        requests,
        generations,
        {
            "rollout": statistics.median(a / b for a, b in pairs),
            "rollout_busy": statistics.median(busy) / quiet,
            "rollout_tokens_per_second": tokens / quiet,
            "swap_s": sampler.usage.swap_s / max(1, sampler.usage.swaps),
        },
    )


def _raw_generate(actor: Any, prompts: list[list[int]], seeds: list[int], eos: list[int]) -> float:
    """In the sampler's process: vLLM itself."""
    from vllm import SamplingParams

    assert actor.llm.reset_prefix_cache()
    params = [
        SamplingParams(
            max_tokens=NEW_TOKENS,
            temperature=1.0,
            seed=seed,
            stop_token_ids=eos,
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
        )
        for seed in seeds
    ]
    start = time.perf_counter()
    actor.llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return time.perf_counter() - start


@contextmanager
def _neighbour() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    time.sleep(4)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _rows(requests: list[Request], generations: list[Generation]) -> list[Row]:
    """Rows to train on, with made-up advantages: what they are costs nothing."""
    rng = random.Random(0)
    rows = []
    for request, g in zip(requests, generations, strict=True):
        sample = Sample(request.episode, request.prompt_tokens, g.tokens, g.logprobs, rng.random())
        rows.append(Row(sample, g.logprobs, tuple(rng.gauss(0, 1) for _ in g.tokens)))
    return rows


def _update(trainer: Trainer, config: configs.ExperimentConfig, rows: list[Row], repeat: int) -> dict[str, float]:
    samples = [row.sample for row in rows]
    engine, learn = config.engine, config.learn
    scoring = plan.shares([plan.length(s) for s in samples], range(len(samples)), engine.ranks, engine.pack_tokens)
    steps = plan.steps(rows, learn.updates, engine.ranks, engine.pack_tokens, 0)
    scored = [[[samples[i] for i in micro.rows] for micro in micros] for micros in scoring]
    trained = [[part.micros for part in parts] for parts in zip(*steps, strict=True)]

    def ours() -> float:
        trainer._references.clear()  # so that each repetition computes them
        start = time.perf_counter()
        trainer.logprobs(ROLE, samples)
        trainer.update(ROLE, rows, 0, 0)
        return time.perf_counter() - start

    def bare() -> float:
        calls = [
            rank.__ray_call__.remote(_bare_loop, ROLE, own, todo)
            for rank, own, todo in zip(trainer._ranks, scored, trained, strict=True)
        ]
        return max(ray.get(calls))

    ours()
    bare()
    pairs = [(ours(), bare()) for _ in range(repeat)]
    micros = [micro for parts in steps for part in parts for micro in part.micros]
    real = sum(plan.length(row.sample) for micro in micros if micro.weight for row in micro.rows)
    filler = sum(plan.length(row.sample) for micro in micros if not micro.weight for row in micro.rows)
    tokens = sum(len(s.output_tokens) for s in samples)
    return {
        "update": statistics.median(a / b for a, b in pairs),
        "update_tokens_per_second": tokens / statistics.median(a for a, _ in pairs),
        "padding": filler / (real + filler),
    }


def _bare_loop(actor: Any, role: str, scored: Any, trained: Any) -> float:
    """In a rank's process: DeepSpeed itself. Packing is done before the clock starts."""
    import torch

    from mappa_core.learn.batch import pack, targets
    from mappa_core.learn.loss import token_logprobs

    host = actor._host
    engine, reference = host._engines[role], host._references[host._bases[role].digest]
    score = [pack(samples) for samples in scored]
    train = [[(pack([r.sample for r in m.rows]), targets(m.rows), m.weight) for m in micros] for micros in trained]
    torch.distributed.barrier()
    start = time.perf_counter()
    engine.eval()
    with torch.no_grad():
        for model in (engine, reference):
            for packed in score:
                token_logprobs(model, packed)
    engine.train()
    for micros in train:
        for at, (packed, target, weight) in enumerate(micros):
            engine.set_gradient_accumulation_boundary(at == len(micros) - 1)
            loss = -(token_logprobs(engine, packed) * target.advantages).mean()
            engine.backward(loss * weight)
        engine.step()
    torch.distributed.barrier()
    return time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    sys.exit(main(args.model, args.repeat))
