"""The application for `serve run` and `serve deploy`, as serve.yaml and rayservice.yaml name it.

Requests come through Ray Serve's proxies, which pass them to the gateways. `headrace serve --backend ray` does without
the proxies, on one machine's port.
"""

from dataclasses import dataclass
from typing import Any

from headrace.engine.config import AsyncEngineArgs
from headrace.engine.settings import FrontEndSettings
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.settings import GatewaySettings
from headrace.ray_serve.app import build_application
from headrace.ray_serve.engine_replica import EngineLaunch
from headrace.ray_serve.gateway_replica import GatewayLaunch
from headrace.ray_serve.settings import RayServeSettings
from headrace.server.settings import ServerSettings
from headrace.tokenization.settings import TokenizationSettings


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The `args` of the application in serve.yaml: settings by their names, in sections as in a settings file."""

    engine: dict[str, Any]
    ray: dict[str, Any]
    gateway: dict[str, Any]
    tokenization: dict[str, Any]
    num_gateways: int
    num_gpus: float


def build(args: dict[str, Any]) -> Any:
    """Called by Ray Serve. Raises SettingsError for a value that cannot be, TypeError for a name that is none."""
    defaults: dict[str, Any] = {"ray": {}, "gateway": {}, "tokenization": {}, "num_gateways": 1, "num_gpus": 0.0}
    given = Arguments(**(defaults | args))
    tokenization = TokenizationSettings(**given.tokenization)
    # Clients come through the proxies, so it takes a port of the system's choice.
    ours: dict[str, Any] = {"port": 0, "admin_port": None, "endpoints_file": "the replica's own"}
    gateway = GatewaySettings(**(ours | given.gateway))
    return build_application(
        RayServeSettings(**given.ray),
        engine=EngineLaunch(
            engine=AsyncEngineArgs(**given.engine),
            server=ServerSettings(),
            front_end=FrontEndSettings(),
            tokenization=tokenization,
        ),
        gateway=GatewayLaunch(gateway=gateway, admission=AdmissionSettings(), tokenization=tokenization),
        num_gpus=given.num_gpus,
        num_gateways=given.num_gateways,
    )
