"""What the Dockerfiles promise: small, not root, nothing of `latest`, and a gateway without torch."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"), key=lambda path: path.name)


@dataclass(frozen=True)
class Instruction:
    name: str
    arguments: str


def stages(path: Path) -> list[list[Instruction]]:
    """The instructions of each stage, `FROM` first; those before the first stage are left out."""
    lines = re.sub(r"(?m)^\s*#.*\n", "", path.read_text()).replace("\\\n", " ").splitlines()
    found: list[list[Instruction]] = []
    for line in filter(None, map(str.strip, lines)):
        name, _, arguments = line.partition(" ")
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append(Instruction(name, " ".join(arguments.split())))
    return found


def arguments_of(stage: list[Instruction], name: str) -> list[str]:
    return [one.arguments for one in stage if one.name == name]


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_is_one_for_the_gateway_and_one_for_the_engine() -> None:
    assert [path.name for path in DOCKERFILES] == ["engine.Dockerfile", "gateway.Dockerfile"]


def test_what_builds_is_not_in_what_runs(dockerfile: Path) -> None:
    build, run = stages(dockerfile)

    assert arguments_of(build, "FROM")[0].endswith(" AS build")
    assert [one for one in arguments_of(run, "COPY") if not one.startswith("--from=build ")] == []
    assert not any("pip" in one or "apt-get" in one for one in arguments_of(run, "RUN"))


def test_base_images_have_exact_versions(dockerfile: Path) -> None:
    (version,) = re.findall(r"(?m)^ARG PYTHON=(\S+)$", dockerfile.read_text())

    assert re.fullmatch(r"3\.\d+\.\d+-slim-\w+", version)
    assert {one.split()[0] for stage in stages(dockerfile) for one in arguments_of(stage, "FROM")} == {
        "python:${PYTHON}"
    }


def test_it_does_not_run_as_root(dockerfile: Path) -> None:
    run = stages(dockerfile)[-1]
    names = [one.name for one in run]

    assert arguments_of(run, "USER") == ["65532:65532"]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert not {"ADD", "COPY", "RUN"} & set(names[names.index("USER") :])


def test_everything_copied_is_in_the_repository_and_not_ignored(dockerfile: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for stage in stages(dockerfile):
        for one in arguments_of(stage, "COPY"):
            if not one.startswith("--from="):
                *sources, _ = one.split()
                for source in sources:
                    assert (ROOT / source).exists(), source
                    assert f"!{source.split('/')[0]}" in ignored, source


def test_its_extras_are_those_of_the_package(dockerfile: Path) -> None:
    import tomllib

    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extras = [name for one in re.findall(r'"\.\[([\w,-]+)\]"', dockerfile.read_text()) for name in one.split(",")]

    assert extras
    assert set(extras) <= set(known)
    assert "engine" not in extras or dockerfile.name == "engine.Dockerfile"


def copy(arguments: str, place: Path) -> None:
    """A COPY without flags; what the build context leaves out is left out."""
    *sources, target = arguments.split()
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for source in sources:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, place / target, ignore=ignored, dirs_exist_ok=True)
        else:
            (place / target).mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, place / target)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_the_gateways_image_installs_runs_without_torch(tmp_path: Path) -> None:
    """The image's own commands, in an environment of their own."""
    build = stages(DOCKER / "gateway.Dockerfile")[0]
    place = tmp_path / "build"
    place.mkdir()
    for one in build:
        if one.name == "COPY":
            copy(one.arguments, place)
        elif one.name == "RUN":
            command = one.arguments.replace("/opt/headrace", str(tmp_path / "venv")).replace(
                "python ", f"{sys.executable} "
            )
            subprocess.run(command, shell=True, cwd=place, check=True, timeout=600, stdout=subprocess.DEVNULL)
    python = tmp_path / "venv" / "bin" / "python"

    listed = subprocess.run([str(python), "-m", "pip", "list"], capture_output=True, text=True, check=True, timeout=120)
    environment = {"PATH": os.environ["PATH"]}
    helped = subprocess.run(
        [str(tmp_path / "venv" / "bin" / "headrace"), "gateway", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=environment,
        cwd=tmp_path,
    )

    names = {line.split()[0].lower() for line in listed.stdout.splitlines()}
    assert not {"torch", "ray", "vllm", "safetensors"} & names
    assert "kubernetes-asyncio" in names | {name.replace("_", "-") for name in names}
    assert "--endpoint" in helped.stdout
