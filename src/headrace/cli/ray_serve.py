"""`headrace serve MODEL_DIR --backend ray`: engines on a Ray cluster, and a gateway before them that clients see.

What the server's settings say of clients holds for the gateway; what else the gateway is told stands in the sections
`gateway` and `admission` of the settings file and the environment.
"""

import argparse
import dataclasses

from headrace.cli.launch import Sources, run_in_event_loop
from headrace.cli.settings import Resolved
from headrace.engine.config import AsyncEngineArgs
from headrace.engine.settings import FrontEndSettings
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.settings import GatewaySettings
from headrace.ray_serve.settings import RayServeSettings
from headrace.server.settings import ServerSettings
from headrace.tokenization.settings import TokenizationSettings

_ALWAYS = ("host", "port")
_OF_REPLICA = "the replica's own"


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit status. `arguments` are those of `headrace serve`."""
    from headrace.ray_serve.engine_replica import EngineLaunch  # after parsing: `--help` needs none of it
    from headrace.ray_serve.gateway_replica import GatewayLaunch
    from headrace.ray_serve.run import run_on_ray

    arguments.backend = None  # what each replica runs
    sources = Sources(arguments)
    server = sources.resolve(ServerSettings, section="server")
    tokenization = sources.resolve(TokenizationSettings, section="tokenization").settings
    engine = EngineLaunch(
        engine=sources.resolve(AsyncEngineArgs, section="engine").settings,
        server=dataclasses.replace(server.settings, ready_file=None),
        front_end=sources.resolve(FrontEndSettings, section="front_end").settings,
        tokenization=tokenization,
        log_level=arguments.log_level,
        log_format=arguments.log_format,
    )
    before = Sources(argparse.Namespace(config=arguments.config, **shared_flags(server)))
    gateway = GatewayLaunch(
        gateway=before.resolve(GatewaySettings, section="gateway").settings,
        admission=before.resolve(AdmissionSettings, section="admission").settings,
        tokenization=tokenization,
        log_level=arguments.log_level,
        log_format=arguments.log_format,
    )
    settings = sources.resolve(RayServeSettings, section="ray").settings
    return run_in_event_loop(run_on_ray(settings, engine=engine, gateway=gateway), arguments)


def shared_flags(server: Resolved[ServerSettings]) -> dict[str, object]:
    """What was said of the server, and concerns clients, as flags of the gateway."""
    names = {field.name for field in dataclasses.fields(GatewaySettings)}
    said = [name for name, origin in server.origins.items() if name in _ALWAYS or origin != "default"]
    flags = {name: getattr(server.settings, name) for name in said if name in names}
    return flags | {"endpoints_file": _OF_REPLICA}
