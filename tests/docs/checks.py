"""What can be said of a command without running it: that what it names exists, and would be taken.

For commands that cannot run here, and for those within sentences, which are seldom whole.
"""

import contextlib
import importlib
import io
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml

from headrace.cli.main import main
from tests.deploy.chart import render_chart
from tests.deploy.manifests import CHART, kustomized
from tests.docs.blocks import ROOT, words_of

_INSTRUCTIONS = frozenset(
    ("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "LABEL", "RUN", "STOPSIGNAL", "USER", "WORKDIR")
)
_MAKEFILE = ROOT / "Makefile"
_NESTED = frozenset({"bench", "keys", "config"})
"""Commands of `headrace` with commands of their own."""


def check(command: str) -> None:
    """AssertionError for one that names what is not there. Only for those that `is_known`."""
    words = words_of(command)
    next(checker for beginning, checker in _CHECKERS.items() if command.startswith(beginning))(words)


def is_known(command: str) -> bool:
    """Whether something can be said of it."""
    return command.startswith(tuple(_CHECKERS))


def _headrace(words: list[str]) -> None:
    """Its flags are flags of the command. A word in capitals stands for one of the reader's."""
    command = words[1 : 2 + (words[1] in _NESTED)]
    if any(word.isupper() for word in command) or command in (["keys"], ["config"], ["bench"]):
        command = command[:1]
    shown = help_of(command)
    assert [word for word in words if word.startswith("--") and word.split("=")[0] not in shown] == []


def help_of(command: list[str]) -> str:
    """What `headrace COMMAND --help` shows."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit) as exited:
        main([*command, "--help"])
    assert exited.value.code == 0
    return shown.getvalue()


def _make(words: list[str]) -> None:
    """Make knows what to do, and the variables are read."""
    makefile = _MAKEFILE.read_text(encoding="utf-8")
    goals = [word for word in words[1:] if "=" not in word]
    for goal in goals:
        assert re.search(rf"^{goal}:.*## ", makefile, re.MULTILINE), f"make {goal}"
    for variable in (word.partition("=")[0] for word in words[1:] if "=" in word):
        assert f"$({variable})" in makefile, variable
    if shutil.which("make") is not None:
        words = ["make", "--dry-run", "PYTHON=python3", *words[1:]]  # which make would look for else, many times
        done = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


def _pip(words: list[str]) -> None:
    """The extra is one of the package's."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (extra,) = re.findall(r"headrace\[([\w-]+)\]", " ".join(words))
    assert extra in known


def _program(words: list[str]) -> None:
    """The file is there and has the flags."""
    path = ROOT / (f"{words[2].replace('.', '/')}.py" if words[1] == "-m" else words[1])
    text = path.read_text(encoding="utf-8")
    assert [word for word in words if word.startswith("--") and f'"{word}"' not in text] == []


def _pytest(words: list[str]) -> None:
    assert [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()] == []


def _git(words: list[str]) -> None:
    """It goes where it has cloned to."""
    assert words == ["git", "clone", "URL", words[3], "&&", "cd", words[3]]


def _docker(words: list[str]) -> None:
    """The Dockerfile has instructions that Docker knows; tests/deploy looks further into it."""
    assert (words[1], words[-1]) == ("build", ".")
    text = (ROOT / words[words.index("--file") + 1]).read_text(encoding="utf-8")
    lines = re.sub(r"(?m)^\s*#.*\n", "", text).replace("\\\n", " ").splitlines()
    instructions = {line.split()[0] for line in lines if line.strip()}
    assert sorted(instructions - _INSTRUCTIONS) == []
    assert {"FROM", "ENTRYPOINT"} <= instructions


def _kubectl(words: list[str]) -> None:
    """The directory makes objects."""
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here, whose kustomize makes the manifests")
    assert words[1] == "apply"
    assert kustomized(ROOT / words[words.index("-k") + 1])


def _helm(words: list[str]) -> None:
    """The chart makes objects, in which the values stand."""
    assert (words[1], ROOT / words[3]) == ("install", CHART)
    values = dict(word.split("=", 1) for word in words if "=" in word)
    assert values.keys() <= yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")).keys()
    made = json.dumps(list(render_chart(CHART, values, release=words[2])))
    assert [value for value in values.values() if value not in made] == []


def _promtool(words: list[str]) -> None:
    """The file of tests names files of rules that are there."""
    path = ROOT / words[3]
    tests: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert tests["tests"]
    assert [name for name in tests["rule_files"] if not (path.parent / name).exists()] == []


def _serve_deploy(words: list[str]) -> None:
    """Ray takes the file, and the application takes its arguments."""
    schema = pytest.importorskip("ray.serve.schema", reason="Ray is not installed")
    folder = ROOT / words[1]
    deployed = schema.ServeDeploySchema(**yaml.safe_load((folder / words[-1]).read_text(encoding="utf-8")))
    for application in deployed.applications:
        module, _, name = application.import_path.partition(":")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(folder))
            assert getattr(importlib.import_module(module), name)(application.args) is not None


_CHECKERS: Mapping[str, Callable[[list[str]], None]] = {
    "headrace ": _headrace,
    "make ": _make,
    "pip install ": _pip,
    "python ": _program,
    "pytest ": _pytest,
    "git clone ": _git,
    "docker build ": _docker,
    "kubectl apply ": _kubectl,
    "helm install ": _helm,
    "promtool test ": _promtool,
    "cd deploy/ray && serve deploy ": _serve_deploy,
}
"""By the beginning of a command."""
