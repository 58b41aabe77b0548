"""The core's Ray host around an actor that is a thread here: who connects, who is told, and what a cancel leaves."""

import asyncio
import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.engine.client.ray_cluster import RayNeeds
from headrace.engine.client.ray_host import RayHost, core_needs
from headrace.engine.wire.token_socket import DoorAddress, knock
from headrace.errors import EngineError, SettingsError
from headrace.testing.cancellation import run_cancelled_at
from headrace.testing.fake_core import fake_engine_config

Life = Callable[[DoorAddress], None]


def hold_until_hung_up(address: DoorAddress) -> None:
    with knock(address, number=0, timeout_s=5.0) as sock:
        sock.recv(1)


class FakeActor:
    """See `RayActor`."""

    pid = 77

    def __init__(self, life: Life) -> None:
        self._life = life
        self._thread: threading.Thread | None = None
        self.ends: list[float] = []

    def serve(self, address: DoorAddress) -> None:
        self._thread = threading.Thread(target=self._life, args=(address,), name="fake-actor")
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def end(self, *, timeout_s: float, is_hurried: Callable[[], bool] = lambda: False) -> str:
        self.ends.append(timeout_s)
        return "(fake actor) ended"

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(10.0)
            assert not self._thread.is_alive()


class FakeCluster:
    """See `RayCluster`."""

    def __init__(self, life: Life) -> None:
        self.actor = FakeActor(life)
        self.num_users = 0
        self.needs: list[RayNeeds] = []
        self.refusal: Exception | None = None

    def enter(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.num_users += 1

    def leave(self) -> None:
        self.num_users -= 1

    def total(self, resource: str) -> float:
        return 0.0

    def start_actor(self, actor_class: type, needs: RayNeeds) -> FakeActor:
        self.needs.append(needs)
        return self.actor


@pytest.fixture(autouse=True)
def _on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.client.ray_host.own_host", lambda: "127.0.0.1")


@pytest.fixture
def new_host() -> Iterator[Callable[[Life], tuple[RayHost, FakeCluster]]]:
    with contextlib.ExitStack() as cleanup:

        def make(life: Life = hold_until_hung_up) -> tuple[RayHost, FakeCluster]:
            cluster: Any = FakeCluster(life)
            cleanup.callback(cluster.actor.join)
            return RayHost(fake_engine_config(), cluster=cluster), cluster

        yield make


async def test_the_actor_connects_and_is_ended(new_host: Callable[..., tuple[RayHost, FakeCluster]]) -> None:
    host, cluster = new_host()
    assert host.pid is None
    sock = await host.start()
    assert (host.pid, sock.family) == (77, socket.AF_INET)
    sock.close()
    assert await host.stop(timeout_s=3.0) == "(fake actor) ended"
    assert (cluster.num_users, cluster.actor.ends) == (0, [3.0])


async def test_a_host_is_stopped_twice_and_leaves_once(new_host: Callable[..., tuple[RayHost, FakeCluster]]) -> None:
    host, cluster = new_host()
    (await host.start()).close()
    await host.stop(timeout_s=0.0)
    await host.stop(timeout_s=0.0)
    assert cluster.num_users == 0


async def test_a_host_that_never_started_says_so(new_host: Callable[..., tuple[RayHost, FakeCluster]]) -> None:
    host, _ = new_host()
    assert await host.stop(timeout_s=0.0) == "was never started"


async def test_an_actor_that_ends_before_it_connects_is_the_error(
    new_host: Callable[..., tuple[RayHost, FakeCluster]],
) -> None:
    host, cluster = new_host(lambda address: None)
    with pytest.raises(EngineError, match=r"the engine core did not connect: \(fake actor\) ended"):
        await host.start()
    await host.stop(timeout_s=0.0)
    assert cluster.num_users == 0


async def test_no_ray_is_the_settings_error(new_host: Callable[..., tuple[RayHost, FakeCluster]]) -> None:
    host, cluster = new_host()
    cluster.refusal = SettingsError("Ray is not installed", param="worker_use_ray")
    with pytest.raises(SettingsError, match="not installed"):
        await host.start()
    assert await host.stop(timeout_s=0.0) == "was never started"


async def test_a_start_that_is_cancelled_leaves_no_connection_and_no_thread(
    new_host: Callable[..., tuple[RayHost, FakeCluster]],
) -> None:
    threads = set(threading.enumerate())
    host, cluster = new_host()
    assert await run_cancelled_at(host.start(), 0)
    await host.stop(timeout_s=0.0)  # waits for the start that goes on
    cluster.actor.join()  # our end is closed, so the actor's life is over
    assert cluster.num_users == 0
    async with asyncio.timeout(10.0):
        while set(threading.enumerate()) != threads:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("executor", "num_cpus"), [("local", 1), ("process", 0), ("ray", 0)])
def test_only_a_core_that_holds_the_model_takes_a_cpu(executor: Any, num_cpus: int) -> None:
    config = fake_engine_config()
    config = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, executor=executor))
    cluster: Any = FakeCluster(hold_until_hung_up)
    assert core_needs(config, cluster) == RayNeeds(num_cpus=num_cpus)
