"""Each invariant's test can fail: a named sabotage of the code turns it red.

The code is copied, one line is changed, and the invariant's own test is run on the copy: it must fail, not crash.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FAILED = 1
"""pytest's exit code where tests ran and some failed; a test that can't be collected is another one."""


class Sabotage(NamedTuple):
    """`line` of `file`, which must be there once, becomes `instead`; then `test` must fail."""

    name: str
    file: str
    line: str
    instead: str
    test: str


CHAT, ROLLOUT = "mappa_core/chat.py", "mappa_core/rollout.py"
BOX = "mappa_core/sandbox"

SABOTAGES = (
    Sabotage(
        "1: a later turn's context is tokenised again",
        CHAT,
        "        return (*context, *(tail[self._closing :] if ended else tail))",
        "        text = self._tokenizer.decode(list(context), skip_special_tokens=False)\n"
        "        return (*self._tokenizer.encode(text).ids, *(tail[self._closing :] if ended else tail))",
        "tests/test_chat.py::test_follow_keeps_every_token_that_was_sampled",
    ),
    Sabotage(
        "1: text is stripped",
        ROLLOUT,
        "        text=speaker.decode(generation.tokens),",
        "        text=speaker.decode(generation.tokens).strip(),",
        "tests/test_rollout.py::test_an_episode_keeps_what_was_sampled",
    ),
    Sabotage(
        "1: outputs are tokenised again",
        ROLLOUT,
        "        output_tokens=generation.tokens,",
        "        output_tokens=speaker.open(speaker.decode(generation.tokens)),",
        "tests/test_rollout.py::test_an_episode_keeps_what_was_sampled",
    ),
    Sabotage(
        "1: a later turn forgets the first",
        ROLLOUT,
        "    return speaker.follow(last.prompt_tokens + last.output_tokens, fill(role.follow_up, partial(_tool, [last])"
        "))",
        "    return speaker.open(fill(role.follow_up, partial(_tool, [last])))",
        "tests/test_rollout.py::test_a_later_turn_continues_the_sampled_tokens",
    ),
    Sabotage(
        "1: a message may forge a turn",
        CHAT,
        "                    cuts.append(left + 1)",
        "                    continue",
        "tests/test_chat.py::test_a_message_cannot_forge_a_turn",
    ),
    Sabotage(
        "rollout: code in thinking runs",
        ROLLOUT,
        '            code = python_code(speakers[role.name].spoken(action.text)) if "python" in role.tools else None',
        '            code = python_code(action.text) if "python" in role.tools else None',
        "tests/test_rollout.py::test_code_runs_only_for_a_role_with_the_tool_and_only_where_it_is_spoken",
    ),
    Sabotage(
        "rollout: no barrier",
        ROLLOUT,
        "        if len(self._waiting) == self._live:",
        "        if self._waiting or not self._live:",
        "tests/test_rollout.py::test_batches_and_episodes_do_not_depend_on_how_long_programs_run",
    ),
    Sabotage(
        "3: a grader that hangs",
        "mappa_core/graders/math_process.py",
        "            line = _line(process, timeout_s)",
        "            line = _line(process, 600.0)",
        "tests/graders/test_math.py::test_an_answer_that_hangs_is_wrong_in_time_and_the_next_is_graded",
    ),
    Sabotage(
        "13: near-duplicates not looked for",
        "mappa_core/problems/sets.py",
        "    for pair in overlap.between(train.problems, heldout.problems):",
        "    for pair in ():",
        "tests/problems/test_sets.py::test_a_leak_names_the_rows",
    ),
    Sabotage(
        "13: figures' source counts",
        "mappa_core/problems/overlap.py",
        '_FIGURES.sub(" ", prompt)',
        "prompt",
        "tests/problems/test_overlap.py::test_one_problem_is_found_in_another_form",
    ),
    Sabotage(
        "13: numbers don't count",
        "mappa_core/problems/overlap.py",
        "        groups[found.numbers].append(at)",
        "        groups[()].append(at)",
        "tests/problems/test_sets.py::test_sets_whose_numbers_differ_are_disjoint",
    ),
    Sabotage(
        "13: only equal statements count",
        "mappa_core/problems/overlap.py",
        "THRESHOLD = 0.75",
        "THRESHOLD = 1.0",
        "tests/problems/test_overlap.py::test_one_problem_is_found_in_another_form",
    ),
    Sabotage(
        "a changed import is used",
        "mappa_core/problems/sets.py",
        "    if brought_in and card(folder).digest != digest:",
        "    if False:",
        "tests/problems/test_imports.py::test_an_import_that_was_changed_is_refused",
    ),
    Sabotage(
        "13: splits of word problems share numbers",
        "mappa_core/problems/words.py",
        "        if split_of(list(drawn.values())) == split and _natural(story, drawn):",
        "        if _natural(story, drawn):",
        "tests/problems/test_words.py::test_splits_share_neither_statements_nor_numbers",
    ),
    Sabotage(
        "keys of a GGUF in the file's order",
        "mappa_core/engine/gguf.py",
        "            weight = _halves(weight, shape.kv_heads)",
        "            weight = _halves(weight, shape.heads)",
        "tests/engine/test_gguf.py::test_weights_are_those_of_the_file_under_transformers_names",
    ),
    Sabotage(
        "a role is blamed for what it was handed",
        "mappa_core/coach/rubric.py",
        'if result == handed else _wrong(4, "coder")',
        'if False else _wrong(4, "coder")',
        "tests/coach/test_rubric.py::test_math_a_wrong_result_is_the_fault_of_who_made_it",
    ),
    Sabotage(
        "9: a damaged trainer state is restored",
        "tasks/update.py",
        "        if state is not None and run.store.has(state):",
        "        if state is not None:",
        "tests/tasks/test_update.py::test_a_damaged_state_is_passed_over",
    ),
    Sabotage(
        "9: weights that a kept checkpoint shares are pruned",
        "tasks/retain.py",
        "            if artifact.digest not in kept:",
        "            if step not in stay:",
        "tests/tasks/test_retain.py::test_weights_that_a_kept_step_shares_are_not_removed",
    ),
    Sabotage(
        "10: the network is there",
        f"{BOX}/inside.py",
        "checked(libc.unshare(NEW_NS | NEW_IPC | NEW_NET))",
        "checked(libc.unshare(NEW_NS | NEW_IPC))",
        "tests/sandbox/test_attacks.py::test_no_network",
    ),
    Sabotage(
        "10: the environment is inherited",
        f"{BOX}/launch.py",
        "            env=ENVIRONMENT,",
        "            env={**os.environ, **ENVIRONMENT},",
        "tests/sandbox/test_attacks.py::test_no_home_repository_or_keys",
    ),
    Sabotage(
        "10: root inside",
        f"{BOX}/inside.py",
        "        os.setresuid(uid, uid, uid)",
        "        pass",
        "tests/sandbox/test_attacks.py::test_no_home_repository_or_keys",
    ),
    Sabotage(
        "10: links are followed",
        f"{BOX}/workspace.py",
        "if not is_directory and not entry.is_file(follow_symlinks=False):",
        "if not is_directory and not entry.is_file(follow_symlinks=True):",
        "tests/sandbox/test_attacks.py::test_a_link_in_the_workspace_is_not_followed",
    ),
    Sabotage(
        "2: an action that can't be judged gets a five",
        "mappa_core/coach/rubric.py",
        '        return [Unscored(a.id, "no Key: this rubric judges against the answer") for a in episode.actions]',
        '        return [Scored(a.id, 5.0, "no Key") for a in episode.actions]',
        "tests/coach/test_rubric.py::test_what_can_not_be_judged_is_unscored",
    ),
    Sabotage(
        "2: unscored actions are trained on",
        "mappa_core/learn/samples.py",
        "        if isinstance(verdict, Scored):",
        "        scored.append((action, Scored(action.id, getattr(verdict, 'value', 5.0), '')))\n        if False:",
        "tests/learn/test_samples.py::test_an_unscored_action_is_left_out_and_counted",
    ),
    Sabotage(
        "3: a label-free coach reads the key",
        "mappa_core/coach/rubric.py",
        "        shown = key if self.sees_answer else None",
        "        shown = key",
        "tests/coach/test_rubric.py::test_without_the_answer_the_key_changes_nothing",
    ),
    Sabotage(
        "3: success is what the team believes",
        "mappa_core/graders/lab.py",
        "    success = answer == right",
        "    success = answer == right or answer == printed(episode)",
        "tests/graders/test_lab.py::test_a_wrong_plan_carried_out_faithfully",
    ),
    Sabotage(
        "4: the reward is at the first token",
        "mappa_core/learn/advantages.py",
        "    rewards[-1] += reward",
        "    rewards[0] += reward",
        "tests/learn/test_advantages.py::test_hand_made",
    ),
    Sabotage(
        "4: the KL has the wrong sign",
        "mappa_core/learn/advantages.py",
        "_returns(-beta * kl, s.reward)",
        "_returns(beta * kl, s.reward)",
        "tests/learn/test_advantages.py::test_hand_made",
    ),
    Sabotage(
        "4: equal rewards are trained on",
        "mappa_core/learn/samples.py",
        "    trained = samples if spread(samples) > 0 else ()",
        "    trained = samples",
        "tests/learn/test_samples.py::test_equal_rewards_skip_the_update",
    ),
    Sabotage(
        "4: a truncated action stays in the loss though masked",
        "mappa_core/learn/samples.py",
        'if truncated == "keep" or a.finish_reason != "length"]',
        "if True]",
        "tests/learn/test_samples.py::test_a_truncated_action_is_kept_or_masked",
    ),
    Sabotage(
        "5: packed rows see each other",
        "mappa_core/learn/batch.py",
        "    lengths = [end - start for start, end in pairwise(bounds)]",
        "    lengths = [bounds[-1]]",
        "tests/learn/test_loss.py::test_packed_rows_do_not_see_each_other",
    ),
    Sabotage(
        "5: the mean of rank means",
        "mappa_core/engine/zero.py",
        "        scale = self._config.ranks / step.kept_tokens",
        "        scale = 1 / sum(len(row.advantages) for micro in step.micros for row in micro.rows)",
        "tests/stack/test_trainer.py::test_the_gradient_is_that_of_one_process_in_float64",
    ),
    Sabotage(
        "6: fillers are trained on",
        "mappa_core/learn/plan.py",
        "    filler = Micro((min(rows, key=lambda row: tokens[row]),), 0.0)",
        "    filler = Micro((min(rows, key=lambda row: tokens[row]),), 1.0)",
        "tests/learn/test_plan.py::test_ranks_stay_in_step_and_every_row_has_weight_once",
    ),
    Sabotage(
        "7: importance weights are not capped",
        "mappa_core/learn/loss.py",
        "    weight = importance.clamp(max=tis_cap)",
        "    weight = importance",
        "tests/learn/test_loss.py::test_importance_weights_are_truncated_and_carry_no_gradient",
    ),
    Sabotage(
        "8: a sampler that serves other weights passes",
        "mappa_core/engine/sampler.py",
        "    if not gap <= limits.mean:  # nan too",
        "    if False:",
        "tests/engine/test_sampler.py::test_a_probe_of_other_weights_is_an_error",
    ),
    Sabotage(
        "8: stale cached blocks pass",
        "mappa_core/engine/sampler.py",
        "    if not last <= limits.token:",
        "    if False:",
        "tests/engine/test_sampler.py::test_a_last_token_computed_on_stale_blocks_is_an_error",
    ),
    Sabotage(
        "8: weights are not swapped",
        "mappa_core/engine/sampler.py",
        '        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": '
        "_tensors(Path(policy.path), self.tied)})",
        "        pass",
        "tests/stack/test_sampler.py::test_probe_is_the_logprobs_of_what_is_served",
    ),
    Sabotage(
        "13: splits share numbers in another order",
        "mappa_core/problems/lab.py",
        '    text = ",".join(map(str, sorted(numbers)))',
        '    text = ",".join(map(str, numbers))',
        "tests/problems/test_lab.py::test_splits_share_no_numbers",
    ),
    Sabotage(
        "the control leaves each role its own scores",
        "mappa_core/coach/shuffle.py",
        "            places[_role(verdict.action)].append(at)",
        '            places["all"].append(at)',
        "tests/coach/test_shuffle.py::test_each_role_keeps_its_scores",
    ),
)


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=[s.name for s in SABOTAGES])
def test_the_sabotage_turns_its_test_red(sabotage: Sabotage, tmp_path: Path) -> None:
    for name in ("mappa_core", "tasks", "flows", "configs", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / sabotage.file
    source = file.read_text()
    assert source.count(sabotage.line) == 1, f"{sabotage.file} has changed: {sabotage.line!r} must be there once"
    file.write_text(source.replace(sabotage.line, sabotage.instead))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", sabotage.test]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == FAILED, done.stdout[-3000:] + done.stderr[-1000:]
