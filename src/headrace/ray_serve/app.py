"""The application: a board, engines, and a gateway that is its ingress.

clients ──▶ Gateway ──HTTP──▶ Engine, Engine, ...
               └──── reads ──▶ Board ◀── announce themselves
"""

from typing import Any

from headrace.ray_serve.board import EndpointBoard
from headrace.ray_serve.engine_replica import EngineLaunch, EngineReplica
from headrace.ray_serve.gateway_replica import GatewayLaunch, GatewayReplica
from headrace.ray_serve.scaling import scale_by_queue
from headrace.ray_serve.settings import RayServeSettings

_DRAIN_MARGIN_S = 30.0
_LOOK_BACK_S = 15.0
"""Replicas tell every ten seconds."""
_MAX_RELAYED = 4096
_LITTLE_CPU = 0.1
"""Ray counts CPUs to place replicas; it holds nobody to them."""


def build_application(
    settings: RayServeSettings,
    *,
    engine: EngineLaunch,
    gateway: GatewayLaunch,
    num_gpus: float,
    num_gateways: int = 1,
    gateway_node: str | None = None,
) -> Any:
    """For `serve.run`. `num_gpus` is what each engine takes; `gateway_node` is the address of the machine on which the
    gateway must be. Gateways with ports of the operator's choice are on machines of their own."""
    from ray import serve

    deployment: Any = serve.deployment  # its types are those of a decorator
    board = deployment(
        EndpointBoard, name="Board", ray_actor_options={"num_cpus": _LITTLE_CPU}, max_ongoing_requests=1000
    )
    engines = deployment(
        EngineReplica,
        name="Engine",
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": num_gpus},
        health_check_period_s=2.0,
        health_check_timeout_s=30.0,
        graceful_shutdown_timeout_s=settings.drain_timeout_s + _DRAIN_MARGIN_S,
        **_replicas(settings),
    )
    gateways = deployment(
        GatewayReplica,
        name="Gateway",
        num_replicas=num_gateways,
        ray_actor_options=_gateway_options(gateway_node),
        max_ongoing_requests=_MAX_RELAYED,
        graceful_shutdown_timeout_s=gateway.gateway.drain_timeout_s + _DRAIN_MARGIN_S,
        **({"max_replicas_per_node": 1} if gateway.gateway.port or gateway.gateway.admin_port else {}),
    )
    bound_board = board.bind()
    return gateways.bind(gateway, bound_board, engines.bind(engine, bound_board))


def _replicas(settings: RayServeSettings) -> dict[str, object]:
    if settings.most_replicas == settings.min_replicas:
        return {"num_replicas": settings.min_replicas}
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    policy = AutoscalingPolicy(policy_function=scale_by_queue)
    config = AutoscalingConfig(
        min_replicas=settings.min_replicas,
        max_replicas=settings.most_replicas,
        target_ongoing_requests=settings.target_queue,
        upscale_delay_s=settings.upscale_delay_s,
        downscale_delay_s=settings.downscale_delay_s,
        look_back_period_s=_LOOK_BACK_S,
        policy=policy,
    )
    return {"autoscaling_config": config}


def _gateway_options(node: str | None) -> dict[str, object]:
    """Every machine of a cluster offers a resource of its own."""
    options: dict[str, object] = {"num_cpus": _LITTLE_CPU}
    if node is not None:
        options["resources"] = {f"node:{node}": 0.001}
    return options
