"""The `mappa` command: parses, starts flows, and turns every expected error into one line and exit code 2."""

from __future__ import annotations

import argparse
import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from flows.environment import settle
from mappa_core.errors import UserError

if TYPE_CHECKING:
    from mappa_core.config import ExperimentConfig

MENDABLE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}
"""Operating system errors that are about the user's disk and rights, not about us."""

EXAMPLES = {
    "run": "mappa run lab\n  mappa run lab --set steps=5 --set seed=1 --dir runs/try\n  mappa run my.toml --dry-run",
    "resume": "mappa resume runs/try",
    "show": "mappa show runs/try\n  mappa show runs/try --step 3\n  mappa show runs/try --step 3 --episode 'lab-1a#0'",
    "data": "mappa data build\n  mappa data import AIME.json --as aime\n  mappa data build --add aime\n"
    "  mappa data check imports/aime lab/report --json",
    "grade": "mappa grade math --answer '\\boxed{1/2}' --reference 0.5 --json",
    "evaluate": "mappa evaluate runs/try --on lab/report --samples 4",
    "export": "mappa export runs/try --role solver\n  mappa export runs/try --role solver --to models/solver",
}


class Parser(argparse.ArgumentParser):
    """Errors in one line, with where to look."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` has examples\n")


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; its exit code: 0 only on success, 2 where the user can mend it."""
    args = _parser().parse_args(arguments)
    settle(Path.cwd())
    try:
        return args.command(args)
    except KeyboardInterrupt:
        print("mappa: interrupted; `mappa resume DIR` goes on from what is stored", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"mappa: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in MENDABLE:
            raise
        print(
            f"mappa: {error.strerror}: {error.filename or 'disk'}; make room or give access, then again",
            file=sys.stderr,
        )
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="mappa",
        description="Trains teams of language-model agents from per-action process rewards.",
        epilog="First time? `mappa data build`, then `mappa run lab`.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    run = _add(commands, "run", _run, "train a team from a preset or a .toml file")
    run.add_argument("source", metavar="PRESET|FILE.toml")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="override a key")
    run.add_argument("--dir", help="run directory (default: runs/NAME-TIME)")
    run.add_argument(
        "--dry-run", action="store_true", help="print the resolved config and what it needs, start nothing"
    )
    run.add_argument("--fresh", action="store_true", help="draw a new seed, so that nothing stored is reused")

    resume = _add(commands, "resume", _resume, "go on with a run that was stopped or killed")
    resume.add_argument("directory", metavar="DIR")

    evaluate = _add(commands, "evaluate", _evaluate, "play a held-out set with the policies of a run")
    evaluate.add_argument("directory", metavar="DIR")
    evaluate.add_argument("--on", required=True, metavar="SET", help="a set under data/, e.g. lab/report")
    evaluate.add_argument("--samples", type=int, default=2, help="episodes a problem")
    evaluate.add_argument("--json", action="store_true")

    export = _add(commands, "export", _export, "write the trained weights of a role as a Hugging Face directory")
    export.add_argument("directory", metavar="DIR")
    export.add_argument("--role", required=True, help="e.g. solver")
    export.add_argument("--to", metavar="OUT", help="a new directory (default: DIR/export/ROLE)")

    show = _add(commands, "show", _show, "print a run, a step, or an episode action by action")
    show.add_argument("directory", metavar="DIR")
    show.add_argument("--step", type=int, help="training step, from 0")
    show.add_argument("--episode", help="an episode of that step, e.g. 'lab-12ab#0'")

    data = _add(commands, "data", None, "build data sets")
    kinds = data.add_subparsers(required=True, metavar="WHAT", parser_class=Parser)
    build = _add(kinds, "build", _build, "make the sets under data/, bit for bit the same everywhere", "data")
    build.add_argument("--add", metavar="NAME", help="also copy the import of this name there, to be versioned")
    bring = _add(kinds, "import", _import, "bring in mathematical problems, as the set imports/NAME", "data")
    bring.add_argument("file", metavar="FILE", help=".json, .jsonl, .csv or .parquet")
    bring.add_argument("--as", required=True, metavar="NAME", dest="name")
    bring.add_argument("--id-column", metavar="COLUMN", help="default: the column with a usual name")
    bring.add_argument("--prompt-column", metavar="COLUMN")
    bring.add_argument("--answer-column", metavar="COLUMN")
    bring.add_argument("--make-ids", action="store_true", help="make ids from the statements, not from a column")
    check = _add(kinds, "check", _check, "name what two sets share; exit code 1 where they do", "data")
    check.add_argument("a", metavar="SET", help="e.g. lab/train, imports/NAME")
    check.add_argument("b", metavar="SET")
    check.add_argument("--json", action="store_true")

    grade = _add(commands, "grade", None, "grade an answer by hand")
    kinds = grade.add_subparsers(required=True, metavar="KIND", parser_class=Parser)
    math = _add(kinds, "math", _grade_math, "is a mathematical answer right?", "grade")
    math.add_argument("--answer", required=True)
    math.add_argument("--reference", required=True)
    math.add_argument("--json", action="store_true")
    return parser


def _add(commands, name: str, command: Callable[..., int] | None, about: str, examples: str | None = None):  # noqa: ANN001, ANN202
    parser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog="examples:\n  " + EXAMPLES[examples or name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command)
    return parser


def _run(args: argparse.Namespace) -> int:
    from mappa_core import config as configs

    overrides = list(args.overrides)
    if args.fresh:
        overrides.append(f"seed={_fresh_seed()}")
    config = configs.load(args.source, overrides)
    if args.dry_run:
        from flows.plan import plan

        print(plan(config, Path.cwd()))
        return 0
    from flows.train import new_directory

    return _train(config, Path(args.dir) if args.dir else new_directory(config, Path.cwd()))


def _train(config: ExperimentConfig, directory: Path) -> int:
    from flows.train import prepared, train
    from flows.view import show_summary
    from tasks.orphans import mark

    prepared(config, str(directory), lambda *_: None)  # what is wrong is said before a server starts
    mark(directory)
    show_summary(Path(train(config, str(directory))))
    return 0


def _resume(args: argparse.Namespace) -> int:
    from flows.view import show_summary
    from mappa_core.store import RunDir

    directory = RunDir(Path(args.directory))
    config = directory.config()
    if (directory.path / "summary.json").is_file():
        print(f"{directory.path} has ended: there is nothing to resume")
        show_summary(directory.path)
        return 0
    with directory.held():  # refused now, before a server starts; the run takes it again
        pass
    return _train(config, directory.path)


def _fresh_seed() -> int:
    import secrets

    return secrets.randbelow(2**31)


def _evaluate(args: argparse.Namespace) -> int:
    from flows.evaluate import evaluate_run

    found = evaluate_run(args.directory, args.on, args.samples)
    print(json.dumps(found) if args.json else _interval(found["success"]))
    return 0


def _export(args: argparse.Namespace) -> int:
    from flows.export import export

    print(export(Path(args.directory), args.role, Path(args.to) if args.to else None))
    return 0


def _interval(success: dict[str, float]) -> str:
    return f"success {success['value']:.3f} [{success['low']:.3f}, {success['high']:.3f}] on {success['n']} episodes"


def _show(args: argparse.Namespace) -> int:
    from flows import view
    from mappa_core import load_run

    run = load_run(args.directory)
    if args.step is None:
        view.show_run(run)
    elif args.episode is None:
        view.show_step(run, args.step)
    else:
        view.show_episode(run, args.step, args.episode)
    return 0


def _build(args: argparse.Namespace) -> int:
    from tasks import data

    folder = data.add(Path.cwd(), args.add) if args.add is not None else None
    print(f"{data.build(Path.cwd())} is made; `dvc status` shows whether it is what data.dvc records")
    if folder is not None:
        name = folder.name
        print(f"{folder} is made; `dvc add data`, then `git add data.dvc`, version it; a run uses it as {name}")
        for other in data.registered(Path.cwd()):
            pairs = data.shared(Path.cwd(), name, other) if other != name else []
            if pairs:
                print(f"{name} shares {len(pairs)} problems with {other}: `mappa data check {name} {other}`")
    return 0


def _import(args: argparse.Namespace) -> int:
    from mappa_core.problems.imports import Wanted
    from tasks.data import bring_in

    wanted = Wanted(args.id_column, args.prompt_column, args.answer_column, args.make_ids)
    made = bring_in(Path.cwd(), Path(args.file), args.name, wanted)
    origin = made.card.origin
    ids = f"ids from {origin.id}" if origin.id else "ids made from the statements"
    print(
        f"{made.folder} is made: {made.card.problems} problems from {origin.prompt}, answers from {origin.answer}, "
        f"{ids}; a run uses it with --set data.train=imports/{args.name}"
    )
    for pair in made.repeated:
        print(f"look at {pair.a} and {pair.b}: they may be one problem (similarity {pair.similarity:.2f})")
    for problem in made.wordy:
        print(f"look at {problem}: its answer has words in it")
    return 0


def _check(args: argparse.Namespace) -> int:
    from tasks.data import shared

    pairs = shared(Path.cwd(), args.a, args.b)
    if args.json:
        overlap = [{"a": p.a, "b": p.b, "similarity": round(p.similarity, 4)} for p in pairs]
        print(json.dumps({"a": args.a, "b": args.b, "overlap": overlap}))
    else:
        for pair in pairs:
            print(f"{pair.a} = {pair.b} ({pair.similarity:.2f})")
        print(f"{args.a} and {args.b} share {len(pairs)} pairs of near-duplicates")
    return 1 if pairs else 0


def _grade_math(args: argparse.Namespace) -> int:
    from mappa_core.graders.math import grade

    found = grade(args.answer, args.reference, timeout_s=10.0)
    if args.json:
        print(json.dumps({"success": found.success, "value": found.value, "why": found.why}))
    else:
        print(f"{'right' if found.success else 'wrong'}: {found.why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
