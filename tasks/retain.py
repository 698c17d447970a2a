"""Retain: which checkpoints stay: the latest ones and the best one. What is removed can be made again from these.

Called when the newest update is recorded and was proven: an old one goes only after that.
"""

from __future__ import annotations

from mappa_core.store import Artifact, Manifest
from tasks.run import Run
from tasks.update import STATE


def retain(run: Run, steps: int) -> None:
    """Prunes what checkpoint.keep does not hold after `steps` training steps."""
    for step in range(max(run.unpruned, default=-1) + 1, steps):
        run.unpruned[step] = run.dir.manifest(step, "update")
    saved = sorted(s for s, m in run.unpruned.items() if _payloads(m, STATE))[-run.config.checkpoint.keep :]
    stay = {*saved, steps - 1, best(run, steps) - 1}
    kept = {a.digest for s, m in run.unpruned.items() for a in _kept(m, s in saved, s in stay)}
    for step, manifest in list(run.unpruned.items()):
        for artifact in (*_payloads(manifest, STATE), *_payloads(manifest, "policy-")):
            if artifact.digest not in kept:
                run.store.prune(artifact)
        if step not in stay:
            del run.unpruned[step]


def best(run: Run, steps: int) -> int:
    """After how many steps held-out success was highest, of the evaluations so far; the latest of equals."""
    found = [
        (run.dir.manifest(s, "evaluate").facts["success"]["value"], s)
        for s in range(steps + 1)
        if run.dir.has(s, "evaluate")
    ]
    return max(found)[1] if found else steps


def _kept(manifest: Manifest, state: bool, policies: bool) -> list[Artifact]:
    return [*(_payloads(manifest, STATE) if state else ()), *(_payloads(manifest, "policy-") if policies else ())]


def _payloads(manifest: Manifest, prefix: str) -> list[Artifact]:
    return [a for a in manifest.artifacts if a.name.startswith(prefix)]
