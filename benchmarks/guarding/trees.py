"""The files of a commit in a folder of their own, to be imported with `PYTHONPATH`; the repository is only read."""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError

_COMPILED = (Path("src/headrace/engine/kernels/csrc"), Path("src/headrace/_native"))
_SOURCES = ("*.c", "*.h")
_BUILT = "*.so"
_BUILD_TIMEOUT_S = 300.0


class TreeError(HeadraceError):
    """A commit cannot be unpacked, or its kernels cannot be built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """One side of the comparison."""

    name: str
    folder: Path

    @property
    def python_path(self) -> str:
        return str(self.folder / "src")


def unpack(commit: str, *, repository: Path, into: Path) -> Tree:
    """The files of a commit. Raises TreeError."""
    sha = _git(repository, "rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    folder = into / sha[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as archive:
        archive.write(_git(repository, "archive", sha, "src", "models", "setup.py", "pyproject.toml"))
        archive.seek(0)
        with tarfile.open(fileobj=archive) as files:
            files.extractall(folder, filter="data")
    return Tree(name=f"{commit} ({sha[:10]})", folder=folder)


def give_compiled(tree: Tree, *, repository: Path) -> None:
    """What the repository has compiled where the sources are the same, else the tree's own. Raises TreeError."""
    there = [folder for folder in _COMPILED if (tree.folder / folder).exists()]
    if any(_texts(tree.folder / folder) != _texts(repository / folder) for folder in there):
        _run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], folder=tree.folder)
        return
    for folder in there:
        for built in (repository / folder).glob(_BUILT):
            shutil.copy2(built, tree.folder / folder)


def _texts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for pattern in _SOURCES for path in sorted(folder.glob(pattern))}


def _git(repository: Path, *arguments: str) -> bytes:
    return _run(["git", *arguments], folder=repository)


def _run(command: Sequence[str], *, folder: Path) -> bytes:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=_BUILD_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TreeError(f"{' '.join(command[:3])} failed: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise TreeError(f"{' '.join(command[:3])} ended with {done.returncode}: {said}")
    return done.stdout
