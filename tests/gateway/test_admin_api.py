"""The admin API and what changes a running gateway's endpoints, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from headrace.errors import SettingsError
from headrace.gateway.app import Gateway
from headrace.gateway.settings import GatewaySettings
from headrace.testing.fake_upstream import DONE, Exchange, FakeUpstream, chunk_event, hangs
from tests.gateway.support import chat_body, chat_request, exchange, raw_client, running_gateway

pytestmark = pytest.mark.integration

KEY = "an-admin-key-of-the-tests"
ENGINE_KEY = "sk-of-an-engine"


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def admin_of(gateway: Gateway, *, key: str | None = KEY) -> AsyncIterator[httpx.AsyncClient]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=gateway.admin_url or "", headers=headers, timeout=20) as client:
        yield client


def administered(*upstreams: FakeUpstream, **settings: object) -> AbstractAsyncContextManager[Gateway]:
    return running_gateway(*upstreams, **({"admin_port": 0, "admin_api_key": KEY} | settings))


async def test_an_endpoint_that_is_added_is_probed_and_takes_requests() -> None:
    async with FakeUpstream(model="a") as one, FakeUpstream(model="b") as two, administered(one) as gateway:
        async with admin_of(gateway) as admin:
            added = await admin.post("/admin/endpoints", json={"url": two.url, "weight": 2, "api_key": ENGINE_KEY})
            again = await admin.post(
                "/admin/endpoints", json={"url": two.url + "/", "weight": 2, "api_key": ENGINE_KEY}
            )
            await until(lambda: "b" in gateway.fleet.models)
            listed = (await admin.get("/admin/endpoints")).json()
        answer = await exchange(gateway, chat_request(chat_body(model="b")))

    assert (added.status_code, again.status_code) == (201, 200)
    assert answer.header("x-headrace-endpoint") == two.url
    assert [(e["url"], e["origin"], e["state"], e["weight"]) for e in listed["data"]] == [
        (one.url, "settings", "ready", 1.0),
        (two.url, "admin API", "ready", 2.0),
    ]
    assert listed["data"][1]["has_api_key"] is True
    assert ENGINE_KEY not in json.dumps(listed)


async def test_an_endpoint_that_is_removed_ends_what_it_has_begun() -> None:
    go_on = asyncio.Event()

    async def streams_slowly(exchange: Exchange) -> None:
        await exchange.start_chunked()
        await exchange.chunk(chunk_event("a"))
        await go_on.wait()
        await exchange.chunk(DONE)
        await exchange.chunk(b"")

    async with FakeUpstream(behaviour=streams_slowly) as two, administered() as gateway, admin_of(gateway) as admin:
        await admin.post("/admin/endpoints", json={"url": two.url})
        await until(lambda: gateway.fleet.num_ready == 1)
        async with raw_client(gateway) as client:
            await client.send(chat_request(chat_body(stream=True)))
            await two.wait_for(lambda: two.num_running == 1)
            removed = await admin.delete("/admin/endpoints", params={"url": two.url})
            refused = await exchange(gateway, chat_request())
            go_on.set()
            answer = await client.read_answer()
        await until(lambda: gateway.fleet.endpoints == ())
        gone = await admin.delete("/admin/endpoints", params={"url": two.url})

    assert (removed.status_code, removed.json()["state"]) == (200, "leaving")
    assert (refused.status, refused.header("retry-after")) == (503, "1")
    assert (answer.status, answer.is_complete) == (200, True)
    assert answer.body.endswith(DONE)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "endpoint_not_found")


async def test_what_does_not_end_within_the_drains_limit_is_cut_and_told_so() -> None:
    async with (
        FakeUpstream(behaviour=hangs) as upstream,
        administered(endpoint_drain_timeout_s=0.05, max_attempts=1) as gateway,
        admin_of(gateway) as admin,
    ):
        await admin.post("/admin/endpoints", json={"url": upstream.url})
        await until(lambda: gateway.fleet.num_ready == 1)
        async with raw_client(gateway) as client:
            await client.send(chat_request())
            await upstream.wait_for(lambda: upstream.num_running == 1)
            await admin.delete("/admin/endpoints", params={"url": upstream.url})
            answer = await client.read_answer()
        await until(lambda: gateway.endpoints.lifecycle.statistics().num_removed == 1)
        num_holders = len(gateway.routing._index._holders)

    assert answer.status >= 500
    assert num_holders == 0


async def test_a_drained_endpoint_is_passed_over_until_it_is_undrained() -> None:
    async with FakeUpstream() as one, FakeUpstream() as two, administered(one, two) as gateway:
        async with admin_of(gateway) as admin:
            drained = [await admin.post("/admin/endpoints/drain", json={"url": one.url}) for _ in range(2)]
            for _ in range(4):
                await exchange(gateway, chat_request())
            health = await admin.get("/health")
            both = await admin.post("/admin/endpoints/drain", json={"url": two.url})
            unready = await admin.get("/health")
            undrained = await admin.post("/admin/endpoints/undrain", json={"url": one.url})
        answer = await exchange(gateway, chat_request())

    assert [response.json()["state"] for response in (*drained, both, undrained)] == [
        "draining",
        "draining",
        "draining",
        "ready",
    ]
    assert (len(one.received), len(two.received)) == (1, 4)
    assert answer.status == 200
    assert (health.status_code, health.json()["why_not"]) == (200, {one.url: "draining: by the operator"})
    assert (unready.status_code, set(unready.json()["why_not"])) == (503, {one.url, two.url})


async def test_without_a_key_nothing_can_be_changed_and_the_answer_says_how_to_switch_it_on() -> None:
    async with (
        FakeUpstream() as upstream,
        running_gateway(upstream, admin_port=0) as gateway,
        admin_of(gateway, key=None) as admin,
    ):
        listed = await admin.get("/admin/endpoints")
        refused = [
            await admin.post("/admin/endpoints", json={"url": "http://127.0.0.1:1"}),
            await admin.delete("/admin/endpoints", params={"url": upstream.url}),
            await admin.post("/admin/endpoints/drain", json={"url": upstream.url}),
            await admin.post("/admin/endpoints/undrain", json={"url": upstream.url}),
        ]

    assert listed.status_code == 200
    assert {response.status_code for response in refused} == {403}
    assert "HEADRACE_GATEWAY_ADMIN_API_KEY" in refused[0].json()["error"]["message"]


async def test_a_wrong_key_is_refused_for_everything() -> None:
    wrong = [b"", b"Bearer wrong", b"Basic " + KEY.encode(), b"Bearer " + KEY.encode() + b"x", b"Bearer \xff"]
    async with administered() as gateway, admin_of(gateway, key=None) as admin:
        answers = [
            await admin.request(method, "/admin/endpoints", headers={b"authorization": given}, json={"url": "http://a"})
            for given in wrong
            for method in ("GET", "POST")
        ]

        assert gateway.fleet.endpoints == ()
    assert {answer.status_code for answer in answers} == {401}
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    assert not any(KEY in answer.text for answer in answers)


WRONG_BODIES = [
    (b"{", 400, "JSON"),
    (b"[]", 400, "JSON"),
    (b'{"url": "dns://a:1"}', 400, "not the URL of an endpoint"),
    (b'{"url": "http://a", "wieght": 2}', 400, "wieght"),
    (b'{"url": "http://a", "weight": 0}', 400, "weight"),
    (b'{"weight": 1}', 400, "url"),
    (b"x" * 70_000, 413, "more than"),
]


async def test_a_wrong_body_is_refused_by_field() -> None:
    async with administered() as gateway, admin_of(gateway) as admin:
        answers = [await admin.post("/admin/endpoints", content=body) for body, _, _ in WRONG_BODIES]

        assert gateway.fleet.endpoints == ()
    assert [answer.status_code for answer in answers] == [status for _, status, _ in WRONG_BODIES]
    for answer, (_, _, words) in zip(answers, WRONG_BODIES, strict=True):
        assert words in answer.json()["error"]["message"]


async def test_the_admin_api_leaves_endpoints_of_other_origins_to_these() -> None:
    async with FakeUpstream() as one, administered(one) as gateway, admin_of(gateway) as admin:
        refused = await admin.delete("/admin/endpoints", params={"url": one.url})
        unknown = await admin.post("/admin/endpoints/drain", json={"url": "http://nowhere:1"})
        taken = await admin.post("/admin/endpoints", json={"url": one.url, "weight": 5})
        given_back = await admin.delete("/admin/endpoints", params={"url": one.url})

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "endpoint_of_other_origin")
    assert unknown.status_code == 404
    assert (taken.json()["origin"], taken.json()["weight"]) == ("admin API", 5.0)
    assert (given_back.json()["origin"], given_back.json()["state"]) == ("settings", "ready")


async def test_an_endpoint_that_is_gone_can_be_undrained(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    async with FakeUpstream() as one, FakeUpstream() as two:
        path.write_text(json.dumps([one.url, two.url]))
        async with (
            administered(endpoints_file=str(path), discovery_interval_s=0.01) as gateway,
            admin_of(gateway) as admin,
        ):
            await admin.post("/admin/endpoints/drain", json={"url": two.url})
            path.write_text(json.dumps([one.url]))
            await until(lambda: len(gateway.fleet.endpoints) == 1)
            undrained = await admin.post("/admin/endpoints/undrain", json={"url": two.url})
            again = await admin.post("/admin/endpoints/undrain", json={"url": two.url})
            path.write_text(json.dumps([one.url, two.url]))
            await until(lambda: gateway.fleet.num_ready == 2)

    assert (undrained.status_code, undrained.json()) == (200, {"url": two.url, "state": "removed"})
    assert again.status_code == 404


async def test_drains_of_endpoints_that_are_gone_do_not_use_up_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.gateway.admin.endpoint_routes._MAX_WANTED", 2)
    path = tmp_path / "endpoints.yaml"
    async with FakeUpstream() as stays:
        path.write_text(json.dumps([stays.url]))
        async with (
            administered(endpoints_file=str(path), discovery_interval_s=0.01) as gateway,
            admin_of(gateway) as admin,
        ):
            for number in range(4):  # a rollout: drained, and then gone
                url = f"http://127.0.0.1:1/{number}"
                path.write_text(json.dumps([stays.url, url]))
                await until(lambda url=url: gateway.fleet.find(url) is not None)
                answer = await admin.post("/admin/endpoints/drain", json={"url": url})
                assert answer.status_code == 200
                path.write_text(json.dumps([stays.url]))
                await until(lambda url=url: gateway.fleet.find(url) is None)


async def test_a_changed_file_changes_the_fleet_but_not_what_was_added(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    async with FakeUpstream() as one, FakeUpstream() as two, FakeUpstream() as three:
        path.write_text(json.dumps([one.url]))
        async with (
            administered(endpoint=(), endpoints_file=str(path), discovery_interval_s=0.01) as gateway,
            admin_of(gateway) as admin,
        ):
            await admin.post("/admin/endpoints", json={"url": three.url})
            path.write_text(json.dumps({"endpoints": [two.url]}))
            await until(lambda: {e.name for e in gateway.fleet.endpoints} == {two.url, three.url})
            path.write_text("endpoints: [")
            async with asyncio.timeout(20):
                while not (trouble := (await admin.get("/admin/endpoints")).json()["sources"][1]["trouble"]):
                    await asyncio.sleep(0.005)
            names = {e.name for e in gateway.fleet.endpoints}

    assert names == {two.url, three.url}
    assert "cannot be read" in trouble


async def test_the_admin_port_is_alive_when_the_gateway_is_not_ready() -> None:
    async with FakeUpstream(health_status=500) as one, administered(one) as gateway, admin_of(gateway) as admin:
        live, health = await admin.get("/live"), await admin.get("/health")
        await gateway.drain()
        drained = await admin.get("/health")

    assert (live.status_code, health.status_code) == (200, 503)
    assert "/health answered 500" in health.json()["why_not"][one.url]
    assert (drained.status_code, drained.json()["status"]) == (503, "draining")


async def test_requests_that_an_engine_has_from_others_count_for_the_choice() -> None:
    busy = "vllm:num_requests_running 30\nvllm:num_requests_waiting 5\nvllm:kv_cache_usage_perc 0.5\n"
    async with (
        FakeUpstream(metrics=busy) as one,
        FakeUpstream(metrics="vllm:num_requests_running 0\n") as two,
        administered(one, two, policy="least_loaded") as gateway,
        admin_of(gateway) as admin,
    ):
        for endpoint in gateway.fleet.endpoints:
            await gateway.endpoints.health.probe(endpoint)
        for _ in range(4):
            await exchange(gateway, chat_request())
        listed = (await admin.get("/admin/endpoints")).json()["data"]
        before = [endpoint.num_in_flight for endpoint in gateway.fleet.endpoints]
        one.metrics = None
        await gateway.endpoints.health.probe(gateway.fleet.endpoints[0])
        after = gateway.fleet.endpoints[0].num_in_flight

    assert (len(one.received), len(two.received)) == (0, 4)
    assert listed[0]["reported"] == {"num_running": 30, "num_waiting": 5, "kv_cache_usage": 0.5}
    assert (before, after) == ([35, 0], 0)


async def test_an_engine_that_was_started_anew_counts_as_empty() -> None:
    body = chat_body(messages=[{"role": "user", "content": "a long story " * 50}])
    async with (
        FakeUpstream(metrics="process_start_time_seconds 1000\nvllm:num_requests_running 0\n") as one,
        administered(one) as gateway,
    ):
        (endpoint,) = gateway.fleet.endpoints
        await exchange(gateway, chat_request(body))
        known = gateway.routing.statistics().index.num_blocks
        one.metrics = "process_start_time_seconds 2000\nvllm:num_requests_running 0\n"
        await gateway.endpoints.health.probe(endpoint)
        holds = [run.holds for run in gateway.routing._index._runs.with_slot(endpoint.holders[0].slot)]

    assert known > 0
    assert holds == []


def test_a_gateway_without_any_source_of_endpoints_does_not_start() -> None:
    with pytest.raises(SettingsError, match="endpoint"):
        GatewaySettings()
    with pytest.raises(SettingsError, match="admin_api_key is too short"):
        GatewaySettings(admin_api_key="short")
