"""`headrace serve --backend ray` before a cluster comes in: which settings go where, and which are refused."""

import argparse

import pytest

from headrace.cli.launch import Sources
from headrace.cli.ray_serve import shared_flags
from headrace.cli.serve import run
from headrace.engine.config import AsyncEngineArgs
from headrace.engine.settings import FrontEndSettings
from headrace.errors import SettingsError
from headrace.ray_serve.engine_replica import EngineLaunch
from headrace.ray_serve.run import check_server, gpus_of
from headrace.ray_serve.settings import RayServeSettings
from headrace.server.settings import ServerSettings
from headrace.tokenization.settings import TokenizationSettings


def launch(**server: object) -> EngineLaunch:
    return EngineLaunch(
        engine=AsyncEngineArgs(model="somewhere"),
        server=ServerSettings(**server),  # type: ignore[arg-type]
        front_end=FrontEndSettings(),
        tokenization=TokenizationSettings(),
    )


def test_a_ray_flag_without_ray_is_refused_rather_than_ignored() -> None:
    with pytest.raises(SettingsError, match=r"--ray-max-replicas is for --backend ray only"):
        run(["somewhere", "--ray-max-replicas", "2"])


def test_what_was_said_of_the_server_holds_for_the_gateway_that_clients_see() -> None:
    arguments = argparse.Namespace(config=None, port="9000", max_body_bytes="1MiB", tool_call_parser="hermes")
    server = Sources(arguments, environment={"HEADRACE_SERVER_DRAIN_TIMEOUT_S": "7s"}).resolve(
        ServerSettings, section="server"
    )

    flags = shared_flags(server)

    assert {name: flags[name] for name in ("host", "port", "max_body_bytes", "drain_timeout_s")} == {
        "host": "127.0.0.1",
        "port": 9000,
        "max_body_bytes": 1 << 20,
        "drain_timeout_s": 7.0,
    }
    assert "tool_call_parser" not in flags


@pytest.mark.parametrize(
    "wrong", [{"api_key": ("k",)}, {"uds": "/tmp/s"}, {"ssl_certfile": "c", "ssl_keyfile": "k"}], ids=str
)
def test_what_only_a_single_server_can_do_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=r"cannot be used with --backend ray") as caught:
        check_server(launch(**wrong))

    assert caught.value.param in wrong


@pytest.mark.parametrize(
    ("engine", "settings", "num_in_cluster", "num_gpus"),
    [
        ({"device": "cpu"}, {}, 8, 0),
        ({"device": "auto"}, {}, 0, 0),
        ({"device": "auto"}, {}, 8, 1),
        ({"device": "cuda", "tensor_parallel_size": 2}, {}, 0, 2),
        ({"device": "cuda"}, {"num_gpus": 0.5}, 8, 0.5),
    ],
)
def test_each_engine_takes_the_gpus_that_its_workers_need(
    engine: dict[str, object], settings: dict[str, float], num_in_cluster: float, num_gpus: float
) -> None:
    args = AsyncEngineArgs(model="somewhere", **engine)  # type: ignore[arg-type]

    assert gpus_of(RayServeSettings(**settings), args, num_in_cluster=num_in_cluster) == num_gpus  # type: ignore[arg-type]
