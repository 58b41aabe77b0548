"""`headrace serve MODEL_DIR`: one engine with the OpenAI API."""

import argparse
import dataclasses
from collections.abc import Sequence

from headrace.cli.launch import Sources, parser_of, run_in_event_loop
from headrace.engine.config import AsyncEngineArgs
from headrace.engine.settings import FrontEndSettings
from headrace.errors import SettingsError
from headrace.ray_serve.settings import RayServeSettings
from headrace.server.settings import ServerSettings
from headrace.tokenization.settings import TokenizationSettings

COMPONENTS = {
    "engine": AsyncEngineArgs,
    "front_end": FrontEndSettings,
    "server": ServerSettings,
    "tokenization": TokenizationSettings,
    "ray": RayServeSettings,
}


def run(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit status."""
    from headrace.server.run import run_server  # after parsing: `--help` needs none of it

    arguments = parser().parse_args(argv)
    if arguments.backend == "ray":
        from headrace.cli import ray_serve  # and so the gateway, which an engine alone needs not

        return ray_serve.run(arguments)
    _refuse_ray_flags(arguments)
    sources = Sources(arguments)
    server = run_server(
        sources.resolve(AsyncEngineArgs, section="engine").settings,
        sources.resolve(ServerSettings, section="server").settings,
        front_end=sources.resolve(FrontEndSettings, section="front_end").settings,
        tokenization=sources.resolve(TokenizationSettings, section="tokenization").settings,
    )
    return run_in_event_loop(server, arguments)


def parser() -> argparse.ArgumentParser:
    """The command's flags; MODEL_DIR is positional, or `engine.model` in the settings file or the environment."""
    parser = parser_of(
        "serve", description="Serve a model with the OpenAI API.", components=COMPONENTS, skip=("model", "backend")
    )
    parser.add_argument(
        "--backend",
        metavar="{headrace,vllm,ray}",
        help="what runs the model; ray: engines on a Ray cluster behind a gateway (default: headrace)",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL_DIR", help="a Hugging Face model directory")
    return parser


def _refuse_ray_flags(arguments: argparse.Namespace) -> None:
    """Raises SettingsError for a flag that means nothing without `--backend ray`."""
    for field in dataclasses.fields(RayServeSettings):
        if getattr(arguments, f"ray_{field.name}") is not None:
            flag = f"--ray-{field.name.replace('_', '-')}"
            raise SettingsError(f"{flag} is for --backend ray only; add that, or leave it out", param=field.name)
