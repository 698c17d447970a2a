"""The sampler: vLLM inside a Ray actor, tokens in, tokens and logprobs out, one policy at a time.

One engine hosts a whole team by swapping weights between waves. It serves what it says: a policy's digest, names and
shapes are checked before it is loaded, the prefix cache is dropped with the weights, and `check_served` compares probe
tokens with the trainer. Refuses other architectures than the base's (they need a sampler each) and text.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ray

from mappa_core import config
from mappa_core.engine import weights
from mappa_core.engine.calls import EngineError, actor_env, wait, wait_async
from mappa_core.types import Generation, Policy, Request

BLOCK = 32
"""Tokens of a cache block; the CPU kernels want multiples of 32."""
MAX_SEQUENCES = 256
"""Sequences that decode together."""
PREFILL_TOKENS = 8192
"""Prompt tokens of one batch, at least; a prompt of max_len always fits."""

_VLLM = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process: starts in seconds, dies with the actor
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # it compiles one small logprob kernel: 20 s at the first start, and a C++ compiler
}
HEAD = "lm_head.weight"
_NOT_STRUCTURE = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}


class Usage(NamedTuple):
    """What the sampler has done so far: seconds in which the engine was busy, and tokens."""

    generate_s: float = 0.0
    swap_s: float = 0.0
    probe_s: float = 0.0
    swaps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def plus(self, more: Usage) -> Usage:
        """Both together."""
        return Usage(
            self.generate_s + more.generate_s,
            self.swap_s + more.swap_s,
            self.probe_s + more.probe_s,
            self.swaps + more.swaps,
            self.prompt_tokens + more.prompt_tokens,
            self.output_tokens + more.output_tokens,
        )

    @property
    def busy_seconds(self) -> float:
        """All seconds in which the engine worked."""
        return self.generate_s + self.swap_s + self.probe_s

    @property
    def tokens_per_second(self) -> float | None:
        """Sampled tokens a second of generation and swaps; None before the first."""
        seconds = self.generate_s + self.swap_s
        return self.output_tokens / seconds if seconds else None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a wave is sampled."""

    max_new_tokens: int
    temperature: float
    eos_ids: tuple[int, ...]


class Room(NamedTuple):
    """What one batch may hold."""

    sequences: int
    prompt_tokens: int
    blocks: int


class Limits(NamedTuple):
    """What of a probe kernels alone explain, in nats: mean |difference|, one token's, a change too small to see."""

    mean: float
    token: float
    unseen: float


LIMITS = {"float32": Limits(1e-3, 1e-3, 1e-4), "bfloat16": Limits(0.1, 0.6, 0.1)}


def budget(request: Request, max_new_tokens: int, max_len: int) -> int:
    """Tokens that `request` may still sample; EngineError where its prompt leaves no room."""
    room = max_len - len(request.prompt_tokens)
    if room < 1 or not request.prompt_tokens:
        who = f"{request.episode}/{request.role}/{request.turn}"
        raise EngineError(f"{who}: a prompt of {len(request.prompt_tokens)} tokens; engine.max_len is {max_len}")
    return min(max_new_tokens, room)


def batches(requests: Sequence[Request], max_new_tokens: int, max_len: int, room: Room) -> list[list[Request]]:
    """`requests` in order, split so that each batch is prefilled at once and never preempted.

    vLLM on CPU crashes on a seeded request whose prompt is computed in pieces: a prompt budget that is too small and a
    cache that is full would both do that.
    """
    out: list[list[Request]] = []
    tokens = blocks = 0
    for request in requests:
        size = len(request.prompt_tokens)
        need = math.ceil((size + budget(request, max_new_tokens, max_len)) / BLOCK)
        full = not out or len(out[-1]) == room.sequences
        if full or tokens + size > room.prompt_tokens or blocks + need > room.blocks:
            out.append([])
            tokens = blocks = 0
        out[-1].append(request)
        tokens, blocks = tokens + size, blocks + need
    return out


def check_served(
    policy: Policy,
    sampler: Sequence[float],
    trainer_now: Sequence[float],
    trainer_before: Sequence[float] | None,
    limits: Limits,
) -> float:
    """Mean |sampler - trainer| of a probe's logprobs, in nats; EngineError where the sampler does not serve `policy`.

    All (T - 1,), of the same tokens. `trainer_before`: the trainer's at the version before, None where there is none or
    its digest is the same; unless the trainer itself saw no change, the sampler must be nearer to now. The last logprob
    is checked by itself too: it is the one that was computed on cached blocks. Invariant 8.
    """
    who = f"the sampler does not serve {policy.role} version {policy.version} ({policy.digest[:8]})"
    gap, last = _gap(sampler, trainer_now), abs(sampler[-1] - trainer_now[-1])
    if not gap <= limits.mean:  # nan too
        raise EngineError(f"{who}: probe logprobs are {gap:.2g} nat off (limit {limits.mean:g}): did the swap fail?")
    if not last <= limits.token:
        raise EngineError(f"{who}: the probe on cached tokens is {last:.2g} nat off: was the prefix cache dropped?")
    if trainer_before is None or _gap(trainer_now, trainer_before) <= limits.unseen:
        return gap
    if not gap < _gap(sampler, trainer_before):
        raise EngineError(f"{who}: probe logprobs are those of the version before: was the swap skipped?")
    return gap


def _gap(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)


class _Engine:
    """What runs in the actor: vLLM, the policies it may serve, and the digest of the one that is loaded."""

    def __init__(self, base: str, engine: config.Engine, prefix_cache: bool) -> None:
        from vllm import LLM  # here: the environment is set, and the driver never pays for the import

        self.max_len = engine.max_len
        self.structure = _structure(Path(base))
        self.tied = bool(self.structure.config.get("tie_word_embeddings"))
        self.checked: set[Policy] = set()
        self.served: dict[str, Policy] = {}
        self.loaded: str | None = None
        prefill = max(PREFILL_TOKENS, engine.max_len)
        self.llm = LLM(
            model=base,
            skip_tokenizer_init=True,
            dtype=engine.dtype,
            max_model_len=engine.max_len,
            enforce_eager=True,
            kv_cache_memory_bytes=int(engine.kv_cache_gib * 2**30),
            block_size=BLOCK,
            load_format="dummy",  # nothing is served before a policy is loaded
            max_num_seqs=MAX_SEQUENCES,
            max_num_batched_tokens=prefill,
            enable_prefix_caching=prefix_cache,
            generation_config="vllm",  # else the model's own file would bend temperature and add stop tokens
        )
        blocks = self.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
        assert blocks is not None
        self.room = Room(MAX_SEQUENCES, prefill, blocks - 1)  # one block is vLLM's null block

    def ready(self) -> int:
        """Process id, when the engine is up."""
        return os.getpid()

    def serve(self, policies: Sequence[Policy]) -> None:
        """Takes these policies as what each role is; loads none yet.

        The prefix cache goes too, so that the bits of a stage don't depend on what was sampled before it.
        """
        for policy in policies:
            if policy not in self.checked:
                weights.check(policy)
                _same_structure(self.structure, policy)
                self.checked.add(policy)
        self._drop_cache()
        self.served = {p.role: p for p in policies}

    def generate(self, role: str, digest: str, requests: list[Request], how: Sampling) -> _Wave:
        """Continues each request with the weights of `digest`."""
        spent = self._load(role, digest)
        start = time.perf_counter()
        out: list[Generation] = []
        for batch in batches(requests, how.max_new_tokens, self.max_len, self.room):
            out += self._wave(batch, how, digest)
        tokens = sum(len(r.prompt_tokens) for r in requests), sum(len(g.tokens) for g in out)
        seconds = time.perf_counter() - start
        return _Wave(out, spent._replace(generate_s=seconds, prompt_tokens=tokens[0], output_tokens=tokens[1]))

    def probe(self, role: str, digest: str, tokens: tuple[int, ...]) -> _Probe:
        """(T - 1,) logprobs of `tokens` after the first; the last is computed on whatever the prefix cache holds."""
        from vllm import SamplingParams

        spent = self._load(role, digest)
        start = time.perf_counter()
        score = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
        final = SamplingParams(max_tokens=1, temperature=0, logprob_token_ids=[tokens[-1]], detokenize=False)
        # Order matters: scoring fills the cache with this version's blocks, so the cached one must be asked first.
        [cached] = self.llm.generate([_prompt(tokens[:-1])], final, use_tqdm=False)
        [scored] = self.llm.generate([_prompt(tokens)], score, use_tqdm=False)
        told = _of(tokens[1:-1], (scored.prompt_logprobs or [])[1:-1])
        last = _of(tokens[-1:], cached.outputs[0].logprobs or [])
        return _Probe(told + last, spent._replace(probe_s=time.perf_counter() - start))

    def _wave(self, batch: list[Request], how: Sampling, digest: str) -> list[Generation]:
        from vllm import SamplingParams

        params = [
            SamplingParams(
                max_tokens=budget(r, how.max_new_tokens, self.max_len),
                temperature=how.temperature,
                seed=r.seed,
                stop_token_ids=list(how.eos_ids),
                ignore_eos=True,  # only the ids that were given end an action
                logprobs=0,
                detokenize=False,
            )
            for r in batch
        ]
        outputs = self.llm.generate([_prompt(r.prompt_tokens) for r in batch], params, use_tqdm=False)
        return [_generation(o.outputs[0], digest) for o in outputs]

    def _load(self, role: str, digest: str) -> Usage:
        """Makes the weights of `digest` the loaded ones; seconds and swaps."""
        policy = self.served.get(role)
        if policy is None or policy.digest != digest:
            raise EngineError(f"the sampler serves {policy} as {role}, not {digest[:8]}; call serve first")
        if self.loaded == digest:
            return Usage()
        start = time.perf_counter()
        self.loaded = None  # should the swap fail half-way, nothing is loaded
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": _tensors(Path(policy.path), self.tied)})
        self._drop_cache()
        self.loaded = digest
        return Usage(swap_s=time.perf_counter() - start, swaps=1)

    def _drop_cache(self) -> None:
        if not self.llm.reset_prefix_cache():
            raise EngineError("vLLM kept its prefix cache: requests are still running")


class _Wave(NamedTuple):
    generations: list[Generation]
    spent: Usage


class _Probe(NamedTuple):
    logprobs: tuple[float, ...]
    spent: Usage


def _prompt(tokens: Sequence[int]) -> Any:
    """As vLLM takes it."""
    return {"prompt_token_ids": list(tokens)}


def _of(tokens: Sequence[int], rows: Sequence[Any]) -> tuple[float, ...]:
    """(T,) of vLLM's rows of logprobs by token, those of `tokens`."""
    return tuple(row[token].logprob for token, row in zip(tokens, rows, strict=True))


def _generation(output: Any, digest: str) -> Generation:
    """A CompletionOutput of vLLM as ours; the logprobs are of the unscaled distribution, whatever the temperature."""
    tokens, why = tuple(output.token_ids), output.finish_reason
    if why not in ("stop", "length"):
        raise EngineError(f"vLLM ended a request with {why!r}; expected stop or length")
    return Generation(tokens, _of(tokens, output.logprobs or []), "stop" if why == "stop" else "length", digest)


class _Structure(NamedTuple):
    config: dict[str, Any]
    shapes: dict[str, list[int]]


def _structure(directory: Path) -> _Structure:
    """Of a Hugging Face directory: config.json without what is not structure, and names and shapes of its weights."""
    settings = json.loads((directory / "config.json").read_text())
    shapes: dict[str, list[int]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    if settings.get("tie_word_embeddings"):
        shapes.pop(HEAD, None)  # some writers save the tied copy too; it is never loaded
    return _Structure({k: v for k, v in settings.items() if k not in _NOT_STRUCTURE}, shapes)


def _tensors(directory: Path, tied: bool) -> Iterable[tuple[str, Any]]:
    """Names and tensors of a policy; where it is tied, the embedding once more as the output head.

    vLLM on CPU packs the head when it is loaded: were it not in the list by name, a reload would keep the old one.
    """
    from safetensors import safe_open

    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no dict
                if tied and name == HEAD:
                    continue
                tensor = file.get_tensor(name)
                yield name, tensor
                if tied and name.endswith("embed_tokens.weight"):
                    yield HEAD, tensor


def _same_structure(base: _Structure, policy: Policy) -> None:
    """EngineError where `policy` can't be loaded over the base: vLLM only warns of weights that it did not get."""
    theirs = _structure(Path(policy.path))
    for ours, other, kind in ((base.config, theirs.config, "config.json"), (base.shapes, theirs.shapes, "weights")):
        odd = sorted(k for k in ours.keys() | other.keys() if ours.get(k) != other.get(k))
        if odd:
            raise EngineError(
                f"{policy.path}: {kind} differ from the base's in {', '.join(odd[:3])}: "
                "one sampler hosts one architecture, give roles of another one a run of their own"
            )


class Sampler:
    """The driver's handle of the actor."""

    def __init__(self, actor: Any, engine: config.Engine) -> None:
        self._actor = actor
        self._engine = engine
        self._digests: dict[str, str] = {}
        self.usage = Usage()

    @classmethod
    def start(cls, base: Path, engine: config.Engine, cpus: float, threads: int, prefix_cache: bool = True) -> Sampler:
        """A sampler that is starting: call `ready` before anything else.

        `base`: a Hugging Face directory of the architecture to serve. `cpus`: share of Ray's CPUs, may be a fraction.
        `threads`: of OpenMP.
        """
        options = {
            "num_cpus": cpus,
            "num_gpus": 1 if engine.device == "cuda" else 0,
            "max_restarts": 0,
            "runtime_env": {"env_vars": dict(actor_env(threads, _VLLM))},
        }
        remote = ray.remote(_Engine).options(**options)  # pyright: ignore[reportAttributeAccessIssue]
        return cls(remote.remote(str(base.absolute()), engine, prefix_cache), engine)

    def ready(self, timeout_s: float) -> None:
        """Returns when the engine is up; EngineError says why not."""
        wait(self._actor.ready.remote(), timeout_s, "the sampler's start")

    def serve(self, policies: tuple[Policy, ...]) -> None:
        """From now on each role's requests are sampled from these weights; EngineError where they don't fit the base.

        Call it before each stage: it also drops the prefix cache, so that equal stages give equal bits.
        """
        wait(self._actor.serve.remote(policies), self._engine.call_timeout_s, "the sampler's serve")
        self._digests = {p.role: p.digest for p in policies}

    async def generate(
        self, role: str, requests: list[Request], max_new_tokens: int, temperature: float, eos_ids: tuple[int, ...]
    ) -> list[Generation]:
        """A generation per request, in their order: at most `max_new_tokens`, fewer where engine.max_len is reached.

        Logprobs are those of the model's distribution at temperature 1.
        """
        how = Sampling(max_new_tokens, temperature, eos_ids)
        call = self._actor.generate.remote(role, self._digest(role), requests, how)
        what = f"the sampler's {len(requests)} generations of {role}"
        out, spent = await wait_async(call, self._engine.call_timeout_s, what)
        self._add(spent)
        return out

    def probe(self, role: str, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """(T - 1,) logprobs of `tokens` after the first, by the weights served as `role`; see `check_served`."""
        call = self._actor.probe.remote(role, self._digest(role), tokens)
        out, spent = wait(call, self._engine.call_timeout_s, f"the sampler's probe of {role}")
        self._add(spent)
        return out

    def stop(self) -> None:
        """Ends the actor and its engine."""
        ray.kill(self._actor)

    def _digest(self, role: str) -> str:
        if role not in self._digests:
            raise EngineError(f"the sampler serves {sorted(self._digests)}, not {role!r}; call serve first")
        return self._digests[role]

    def _add(self, spent: Usage) -> None:
        self.usage = self.usage.plus(spent)
