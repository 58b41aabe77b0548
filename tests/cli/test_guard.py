import io
import shutil
import subprocess
from pathlib import Path

import pytest
from benchmarks import guard
from benchmarks.guarding.measures import MeasureError, Taken
from benchmarks.guarding.trees import Tree, TreeError, give_compiled, unpack
from benchmarks.guarding.verdict import Measure, judge
from rich.console import Console

FAST = Measure(name="fast", unit="requests/s", is_higher_better=True)
SLOW = Measure(name="slow", unit="ms")


@pytest.mark.parametrize(
    ("measure_of", "base", "candidate", "is_worse"),
    [
        (SLOW, [10.0, 10.0, 10.0, 10.0], [12.0, 12.0, 12.0, 12.0], True),
        (SLOW, [10.0, 10.0, 10.0, 10.0], [10.9, 10.9, 10.9, 10.9], False),
        (SLOW, [12.0, 12.0, 12.0, 12.0], [10.0, 10.0, 10.0, 10.0], False),
        (FAST, [10.0, 10.0, 10.0, 10.0], [8.0, 8.0, 8.0, 8.0], True),
        (FAST, [8.0, 8.0, 8.0, 8.0], [10.0, 10.0, 10.0, 10.0], False),
        (SLOW, [10.0, 10.0, 10.0, 10.0], [8.0, 12.0, 12.0, 16.0], False),  # no more than its own spread
        (SLOW, [10.0, 20.0, 40.0, 10.0], [10.0, 20.0, 40.0, 10.0], False),  # the machine was slow, for both
        (SLOW, [10.0], [12.0], True),
    ],
)
def test_worse_is_what_is_worse_by_more_than_threshold_and_spread(
    measure_of: Measure, base: list[float], candidate: list[float], is_worse: bool
) -> None:
    assert judge(measure_of, base, candidate, threshold=0.1).is_worse is is_worse


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "repository"
    for name in ("src/headrace/engine/kernels/csrc/kernel.c", "models/model.txt", "setup.py", "pyproject.toml"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "first"]):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *words],
            cwd=folder,
            check=True,
        )
    return folder


@pytest.mark.integration
def test_a_commit_beside_itself_is_not_worse_and_each_round_has_both(repository: Path, tmp_path: Path) -> None:
    base, candidate = (unpack("HEAD", repository=repository, into=tmp_path / name) for name in ("base", "candidate"))
    taken: list[tuple[str, int]] = []

    def take(tree: Tree, number: int) -> float:
        assert (tree.folder / "src/headrace/engine/kernels/csrc/kernel.c").is_file()
        taken.append((tree.folder.parent.name, number))
        return 5.0 + number

    measures = [Taken(measure=SLOW, take=take)]
    verdicts, notes = guard.compare(base, candidate, measures, num_rounds=2, threshold=0.1, say=lambda _: None)
    assert [(one.times_worse, one.spread, one.is_worse) for one in verdicts] == [(1.0, 0.0, False)]
    assert notes == []
    assert taken == [
        ("candidate", 0),
        ("base", 0),
        ("base", 1),
        ("candidate", 1),
        ("candidate", 2),
        ("base", 2),
    ]


@pytest.mark.integration
def test_kernels_that_are_built_already_are_taken_over_where_the_sources_are_the_same(
    repository: Path, tmp_path: Path
) -> None:
    csrc = Path("src/headrace/engine/kernels/csrc")
    (repository / csrc / "_kernels.so").write_bytes(b"built")
    tree = unpack("HEAD", repository=repository, into=tmp_path)
    give_compiled(tree, repository=repository)
    assert (tree.folder / csrc / "_kernels.so").read_bytes() == b"built"


def test_a_name_that_no_measure_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert guard.main(["HEAD", "--only", "nothing of the kind"]) == 2
    assert capsys.readouterr().err == "no measure has 'nothing of the kind' in its name\n"


@pytest.mark.integration
def test_a_commit_that_there_is_not_is_an_error(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="rev-parse"):
        unpack("no-such-commit", repository=repository, into=tmp_path)


def test_a_measure_that_one_side_cannot_do_is_a_note_and_no_verdict(tmp_path: Path) -> None:
    def take(tree: Tree, number: int) -> float:
        raise MeasureError(f"{tree.name} has no such thing")

    tree = Tree(name="the tree", folder=tmp_path)
    verdicts, notes = guard.compare(
        tree, tree, [Taken(measure=FAST, take=take)], num_rounds=1, threshold=0.1, say=lambda _: None
    )
    console = Console(file=io.StringIO(), width=120)
    guard.show(verdicts, notes, console)
    assert verdicts == []
    assert notes == ["fast is not compared: the tree has no such thing"]
    assert "fast is not compared" in console.file.getvalue()  # type: ignore[attr-defined]  # of a StringIO
