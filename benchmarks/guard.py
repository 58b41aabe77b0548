"""Whether a commit made something slower: two trees measured in turns, compared by ratios of the same rounds.

    .venv/bin/python -m benchmarks.guard BASE [CANDIDATE] [--rounds N] [--threshold SHARE] [--only TEXT]

CANDIDATE is the working tree where it is not given. The exit status is 1 when a measure of the candidate is worse by
more than the threshold (10 %) beyond what the rounds differ among themselves, and 2 when nothing could be compared.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.guarding.measures import MeasureError, Taken, all_measures
from benchmarks.guarding.trees import Tree, TreeError, give_compiled, unpack
from benchmarks.guarding.verdict import Verdict, judge

REPOSITORY = Path(__file__).resolve().parents[1]
_REAL = REPOSITORY.parent / "shared" / "data" / "qwen2.5_tokenizer.json"
_DEMO = REPOSITORY / "models" / "demo"
_COLUMNS = 120


def compare(
    base: Tree,
    candidate: Tree,
    measures: Sequence[Taken],
    *,
    num_rounds: int,
    threshold: float,
    say: Callable[[str], None],
) -> tuple[list[Verdict], list[str]]:
    """Verdicts, and why some measures have none. The round before the first is not counted (blocking)."""
    verdicts, notes = [], []
    for taken in measures:
        try:
            old, new = _rounds(base, candidate, taken, num_rounds=num_rounds, say=say)
        except MeasureError as error:
            notes.append(f"{taken.measure.name} is not compared: {error.message}")
            continue
        verdicts.append(judge(taken.measure, old, new, threshold=threshold))
    return verdicts, notes


def _rounds(
    base: Tree, candidate: Tree, taken: Taken, *, num_rounds: int, say: Callable[[str], None]
) -> tuple[list[float], list[float]]:
    """Each round has both, now one first, now the other."""
    found: dict[Tree, list[float]] = {base: [], candidate: []}
    for number in range(num_rounds + 1):
        say(f"{taken.measure.name}: round {number} of {num_rounds}")
        for tree in (base, candidate) if number % 2 else (candidate, base):
            value = taken.take(tree, number)
            if number:
                found[tree].append(value)
    return found[base], found[candidate]


def show(verdicts: Sequence[Verdict], notes: Sequence[str], console: Console) -> None:
    table = Table("", "base", "candidate", "", "times worse", "+/-", "")
    for one in verdicts:
        values = (f"{value:,.4g}" for value in (one.base, one.candidate))
        word = "WORSE" if one.is_worse else "fine"
        name, unit = one.measure.name, one.measure.unit
        table.add_row(name, *values, unit, f"{one.times_worse:.3f}", f"{one.spread:.1%}", word)
    console.print(table)
    for note in notes:
        console.print(note, markup=False)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    wanted = [
        one for one in all_measures(_DEMO, _REAL if _REAL.is_file() else _DEMO) if arguments.only in one.measure.name
    ]
    if not wanted:
        print(f"no measure has {arguments.only!r} in its name", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="headrace-guard-") as directory:
        try:
            base, candidate = _trees(arguments, Path(directory))
        except TreeError as error:
            print(error.message, file=sys.stderr)
            return 2
        verdicts, notes = compare(
            base, candidate, wanted, num_rounds=arguments.rounds, threshold=arguments.threshold, say=_say
        )
    show(verdicts, notes, Console(highlight=False, width=None if sys.stdout.isatty() else _COLUMNS))
    if not verdicts:
        return 2
    return 1 if any(one.is_worse for one in verdicts) else 0


def _trees(arguments: argparse.Namespace, into: Path) -> tuple[Tree, Tree]:
    """Each in a folder of its own, also when both are the same commit."""
    base = unpack(arguments.base, repository=REPOSITORY, into=into / "base")
    give_compiled(base, repository=REPOSITORY)
    if arguments.candidate is None:
        return base, Tree(name="the working tree", folder=REPOSITORY)
    candidate = unpack(arguments.candidate, repository=REPOSITORY, into=into / "candidate")
    give_compiled(candidate, repository=REPOSITORY)
    return base, candidate


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.guard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", metavar="BASE", help="a commit")
    parser.add_argument("candidate", nargs="?", metavar="CANDIDATE", help="a commit (default: the working tree)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="default: %(default)s")
    parser.add_argument("--threshold", type=float, default=0.1, metavar="SHARE", help="default: %(default)s")
    parser.add_argument("--only", default="", metavar="TEXT", help="only measures with TEXT in their name")
    return parser


if __name__ == "__main__":
    sys.exit(main())
