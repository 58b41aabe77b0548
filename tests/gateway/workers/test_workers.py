"""Several worker processes as one gateway: what they share, what is joined, and what becomes of one that dies."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.errors import HeadraceError, OverloadedError, SettingsError
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.settings import GatewaySettings
from headrace.gateway.workers.supervisor import Supervisor, check_shared
from headrace.ready_file import read_ready_file
from headrace.testing.fake_upstream import DONE, Exchange, FakeUpstream, chunk_event

KEY = "an-admin-key-of-the-tests"
BODY = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


def settings_for(*upstreams: FakeUpstream, **more: object) -> GatewaySettings:
    fields: dict[str, object] = {
        "endpoint": tuple(upstream.url for upstream in upstreams),
        "port": 0,
        "admin_port": 0,
        "admin_api_key": KEY,
        "workers": 2,
        "health_interval_s": 0.2,
        "drain_timeout_s": 20.0,
    }
    return GatewaySettings(**(fields | more))  # type: ignore[arg-type]


@asynccontextmanager
async def admin_of(supervisor: Supervisor) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=supervisor.admin_url or "", headers=headers, timeout=20) as client:
        yield client


async def ask(url: str, **fields: object) -> httpx.Response:
    """One request on a connection of its own, which any of the workers may get."""
    async with httpx.AsyncClient(timeout=20) as client:
        return await client.post(f"{url}/v1/chat/completions", json=BODY | fields)


@pytest.mark.integration
async def test_workers_serve_one_port_and_are_seen_and_changed_as_one() -> None:
    async with (
        FakeUpstream() as one,
        FakeUpstream(model="b") as two,
        Supervisor(settings_for(one)) as supervisor,
        admin_of(supervisor) as admin,
    ):
        statuses = [(await ask(supervisor.url)).status_code for _ in range(12)]
        metrics = (await admin.get("/metrics")).text
        added = await admin.post("/admin/endpoints", json={"url": two.url})
        # Every worker must know of it: none of these requests, wherever it goes, may miss it.
        async with asyncio.timeout(20):
            while not all([(await ask(supervisor.url, model="b")).status_code == 200 for _ in range(8)]):
                await asyncio.sleep(0.05)
        drained = await admin.post("/admin/endpoints/drain", json={"url": two.url})
        refused = {(await ask(supervisor.url, model="b")).status_code for _ in range(8)}
        async with asyncio.timeout(20):
            while (state := (await admin.get("/state")).json()).get("num_requests", 0) < 12:
                await asyncio.sleep(0.05)
        health = await admin.get("/health")

    assert statuses == [200] * 12
    samples = [
        sample
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "headrace_gateway_attempts_total"
    ]
    assert {sample.labels["worker"] for sample in samples} <= {"0", "1"}
    assert sum(sample.value for sample in samples) == 12
    assert (added.status_code, drained.json()["state"]) == (201, "draining")
    assert refused == {503}
    assert {endpoint["name"] for endpoint in state["endpoints"]} == {one.url, two.url}
    assert (health.status_code, health.json()["num_workers"]) == (200, 2)


@pytest.mark.integration
async def test_a_worker_that_is_killed_is_replaced_and_the_new_one_knows_what_was_added() -> None:
    async with (
        FakeUpstream() as one,
        Supervisor(settings_for(admin_port=0)) as supervisor,
        admin_of(supervisor) as admin,
    ):
        await admin.post("/admin/endpoints", json={"url": one.url})
        killed = supervisor.members[0].pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await until(lambda: supervisor.members[0].num_starts == 2 and supervisor.members[0].is_ready)
        async with asyncio.timeout(20):
            while (await admin.get("/health")).json()["num_ready"] < 2:
                await asyncio.sleep(0.05)
        statuses = [(await ask(supervisor.url)).status_code for _ in range(8)]
        metrics = (await admin.get("/metrics")).text

    assert statuses == [200] * 8
    assert "headrace_gateway_worker_starts_total 3.0" in metrics


@pytest.mark.integration
async def test_sigterm_lets_every_worker_end_what_it_has_begun(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def streams_slowly(exchange: Exchange) -> None:
        await exchange.start_chunked()
        await exchange.chunk(chunk_event("a"))
        await go_on.wait()
        await exchange.chunk(DONE)
        await exchange.chunk(b"")

    async with (
        FakeUpstream(behaviour=streams_slowly) as upstream,
        running_command(upstream, directory=tmp_path) as (process, url),
        asyncio.TaskGroup() as group,
    ):
        asked = [group.create_task(ask(url, stream=True)) for _ in range(4)]
        await upstream.wait_for(lambda: upstream.num_running == 4)
        process.send_signal(signal.SIGTERM)
        await until_closed(url)
        go_on.set()
        async with asyncio.timeout(30):
            code = await process.wait()

    assert code == 0
    assert [task.result().content.endswith(DONE) for task in asked] == [True] * 4


@pytest.mark.slow
@pytest.mark.integration
async def test_workers_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, running_command(upstream, directory=tmp_path) as (process, url):
        assert (await ask(url)).status_code == 200
        process.kill()
        await process.wait()
        await until_closed(url)


@asynccontextmanager
async def running_command(
    upstream: FakeUpstream, *, directory: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`headrace gateway --workers 2`, and its URL."""
    ready_file = directory / "ready.json"
    flags = ["--endpoint", upstream.url, "--port", "0", "--admin-port", "none", "--workers", "2"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli.main", "gateway", *flags, "--ready-file", str(ready_file)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(50):
            while (address := read_ready_file(ready_file)) is None:
                assert process.returncode is None
                await asyncio.sleep(0.02)
        yield process, address.url
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until_closed(url: str) -> None:
    async with asyncio.timeout(20):
        while await can_connect(url):
            await asyncio.sleep(0.02)


async def can_connect(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


@pytest.mark.slow
@pytest.mark.integration
async def test_a_setting_that_a_worker_refuses_stops_the_start_with_its_name() -> None:
    settings = settings_for(endpoint=("http://127.0.0.1:1",), admin_port=None)
    admission = AdmissionSettings(keys_file="/nowhere/keys.yaml", state="redis://127.0.0.1:1")
    with pytest.raises(SettingsError, match="keys_file") as raised:
        async with Supervisor(settings, admission=admission):
            pytest.fail("it started")

    assert raised.value.param == "keys_file"


@pytest.mark.integration
async def test_what_a_worker_refuses_is_what_the_gateway_refuses() -> None:
    settings = settings_for(endpoint=("http://127.0.0.1:1",), admin_port=None)
    report = json.dumps({"type": "refused", "message": "no such file", "param": "keys_file"})
    script = f"import os, sys; os.write(int(sys.argv[1]), {report.encode() + bytes([10])!r}); sys.exit(2)"
    with pytest.raises(SettingsError, match="no such file") as raised:
        async with Supervisor(settings, command=(sys.executable, "-S", "-c", script)):
            pytest.fail("it started")

    assert raised.value.param == "keys_file"


@pytest.mark.integration
async def test_without_a_worker_nothing_is_said_of_endpoints() -> None:
    supervisor = Supervisor(settings_for(endpoint=("http://127.0.0.1:1",)))
    try:
        with pytest.raises(OverloadedError, match="No worker"):
            await supervisor.list()
    finally:
        await supervisor.aclose()


@pytest.mark.integration
async def test_workers_that_never_start_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.gateway.workers.member._MAX_PAUSE_S", 0.01)
    settings = settings_for(endpoint=("http://127.0.0.1:1",), admin_port=None)
    supervisor = Supervisor(settings, command=(sys.executable, "-S", "-c", "raise SystemExit(3)"))
    with pytest.raises(HeadraceError, match="ended with status 3"):
        async with supervisor:
            pytest.fail("it started")

    assert max(member.num_starts for member in supervisor.members) == 8


@pytest.mark.integration
async def test_a_port_that_is_taken_stops_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = settings_for(endpoint=("http://127.0.0.1:1",), port=taken.getsockname()[1])
        with pytest.raises(SettingsError, match="port: cannot listen"):
            async with Supervisor(settings):
                pytest.fail("it started")


@pytest.mark.parametrize(
    ("admission", "names"),
    [
        (AdmissionSettings(keys_file="keys.yaml"), ("workers", "keys_file", "state")),
        (AdmissionSettings(max_in_flight_per_endpoint=3), ("workers", "max_in_flight_per_endpoint")),
    ],
)
async def test_what_workers_would_count_each_for_itself_is_refused_by_name(
    admission: AdmissionSettings, names: tuple[str, ...]
) -> None:
    settings = GatewaySettings(endpoint=("http://a:1",), workers=2)
    with pytest.raises(SettingsError) as raised:
        check_shared(settings, admission)

    assert all(name in raised.value.message for name in names)
    check_shared(GatewaySettings(endpoint=("http://a:1",)), admission)
    check_shared(settings, AdmissionSettings(keys_file="keys.yaml", state="redis://x"))
