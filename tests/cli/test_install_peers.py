import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "install.py"


@pytest.fixture
def script() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT), run_name="install"))


def peer(script: SimpleNamespace, *, probe: str) -> object:
    return script.Peer(
        name="A peer",
        folder="a-peer",
        package="pytest",
        requirements=(),
        probe=probe,
        runner="a_runner.py",
        about="nothing",
        environment=lambda at: {"FOLDER": at.folder.name},
    )


def test_a_peer_that_works_is_not_installed_again_and_gets_its_manifest(
    script: SimpleNamespace, tmp_path: Path
) -> None:
    interpreter = tmp_path / "a-peer" / "venv" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    script.install(peer(script, probe="pass"), tmp_path)
    manifest = json.loads((tmp_path / "a-peer" / "peer.json").read_text())
    assert manifest == {
        "name": "A peer",
        "version": pytest.__version__,
        "python": str(interpreter),
        "runner": str(SCRIPT.with_name("a_runner.py")),
        "converted_suffix": None,
        "environment": {"FOLDER": "a-peer"},
    }
    assert not (tmp_path / "a-peer" / "install.log").exists()


def test_a_step_that_fails_says_so_with_the_end_of_its_log(script: SimpleNamespace, tmp_path: Path) -> None:
    at = script.Installation(peer=peer(script, probe="pass"), folder=tmp_path)
    with pytest.raises(script.StepError, match=r"exited with 3:\n(.*\n)*no such wheel"):
        at.run([sys.executable, "-c", "print('no such wheel'); raise SystemExit(3)"])


def test_every_peer_has_its_runner(script: SimpleNamespace) -> None:
    assert all(one.runner is None or SCRIPT.with_name(one.runner).is_file() for one in script.PEERS)


def test_a_peer_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--root", str(tmp_path), "nothing"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown: nothing; there are llama-cpp, vllm" in done.stderr


def test_production_stack_is_installed_from_a_copy_of_its_sources(script: SimpleNamespace, tmp_path: Path) -> None:
    one = script.production_stack(tmp_path)
    assert (one.folder, one.requirements) == ("production-stack", (str(tmp_path),))
    command = [sys.executable, str(SCRIPT), "--root", str(tmp_path), "--production-stack", str(tmp_path), "nothing"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "tokenizers, production-stack" in done.stderr
