"""The operator's routes over a real socket: who may use them, and what they do."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.errors import SettingsError
from headrace.server.admin import ADMIN_PATHS
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

KEY = {"authorization": "Bearer for-operators"}


@pytest.fixture
async def admin(engine: FakeEngine, serve: Any) -> AsyncIterator[Any]:
    """A server whose requests carry the admin key."""
    settings = ServerSettings(port=0, api_key=("for-clients",), admin_api_key=("for-operators",))
    async with serve(engine, settings) as server:
        server.http.headers.update(KEY)
        yield server


async def every_route(server: Any, **headers: str) -> dict[str, int]:
    answers = {}
    for path in sorted(ADMIN_PATHS):
        method = "GET" if path == "/is_sleeping" else "POST"
        response = await server.http.request(method, path, headers=headers)
        answers[path] = response.status_code
    return answers


async def test_without_an_admin_key_in_the_settings_all_are_closed(server: Any, engine: FakeEngine) -> None:
    assert set((await every_route(server, authorization="Bearer x")).values()) == {403}
    assert "admin_api_key" in (await server.http.post("/sleep")).json()["error"]["message"]
    assert not engine.operations.is_asleep


async def test_only_the_admin_key_opens_them(admin: Any) -> None:
    assert set((await every_route(admin, authorization="")).values()) == {401}
    assert set((await every_route(admin, authorization="Bearer for-clients")).values()) == {401}
    assert set((await every_route(admin)).values()) == {200}


async def test_the_admin_key_opens_nothing_else(admin: Any) -> None:
    response = await admin.http.post("/v1/completions", json={"prompt": "x"})
    assert response.status_code == 401


async def test_the_engine_sleeps_and_wakes_part_by_part(admin: Any) -> None:
    assert (await admin.http.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await admin.http.post("/sleep?level=2")).json() == {"status": "sleeping", "level": 2}
    assert (await admin.http.get("/is_sleeping")).json() == {"is_sleeping": True}
    partly = (await admin.http.post("/wake_up?tags=weights")).json()
    assert partly == {"status": "sleeping", "tags": ["weights"]}
    assert (await admin.http.post("/wake_up")).json() == {"status": "awake", "tags": None}
    assert (await admin.http.get("/is_sleeping")).json() == {"is_sleeping": False}


async def test_sleeping_aborts_what_runs_unless_it_is_kept(admin: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=1)
    clients = {"authorization": "Bearer for-clients"}
    body = {"prompt": "hello", "stream": True}
    async with admin.http.stream("POST", "/v1/completions", json=body, headers=clients) as response:
        lines = response.aiter_lines()
        await anext(lines)
        await admin.http.post("/sleep?mode=keep")
        assert engine.num_live == 1
        await admin.http.post("/sleep")
        assert '"code":"aborted"' in "".join([line async for line in lines])
    assert engine.num_live == 0


async def test_the_prefix_cache_is_reset_unless_it_is_in_use(admin: Any, engine: FakeEngine) -> None:
    assert (await admin.http.post("/reset_prefix_cache")).json() == {"success": True}
    engine.hold(after_tokens=1)
    clients = {"authorization": "Bearer for-clients"}
    body = {"prompt": "hello", "stream": True}
    async with admin.http.stream("POST", "/v1/completions", json=body, headers=clients) as response:
        await anext(response.aiter_lines())
        assert (await admin.http.post("/reset_prefix_cache")).json() == {"success": False}
    await engine.until(lambda: engine.num_live == 0)
    assert engine.operations.num_cache_resets == 1


async def test_profiling_starts_and_stops(admin: Any, engine: FakeEngine) -> None:
    assert (await admin.http.post("/start_profile")).status_code == 200
    assert engine.operations.is_profiling
    assert (await admin.http.post("/stop_profile")).status_code == 200
    assert not engine.operations.is_profiling


async def test_an_engine_without_a_place_for_profiles_says_so(admin: Any, engine: FakeEngine) -> None:
    engine.operations.can_profile = False
    response = await admin.http.post("/start_profile", json={})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "profiler_dir")


@pytest.mark.parametrize(
    ("route", "name"),
    [("/v1/completions", "id"), ("/v1/chat/completions", "id"), ("/inference/v1/generate", "request_id")],
)
async def test_one_request_is_aborted_by_the_id_of_its_answer(
    admin: Any, engine: FakeEngine, route: str, name: str
) -> None:
    engine.hold(after_tokens=1)
    clients = {"authorization": "Bearer for-clients"}
    body = {
        "prompt": "hello",
        "messages": [{"role": "user", "content": "hi"}],
        "token_ids": [1, 2],
        "sampling_params": {},
        "stream": True,
    }
    async with admin.http.stream("POST", route, json=body, headers=clients) as response:
        lines = response.aiter_lines()
        first = await anext(lines)
        answer_id = first.partition(f'"{name}":"')[2].partition('"')[0]
        assert (await admin.http.post("/abort", json={"request_ids": ["other"]})).json() == {"num_aborted": 0}
        assert (await admin.http.post("/abort", json={"request_ids": [answer_id]})).json() == {"num_aborted": 1}
        assert '"code":"aborted"' in "".join([line async for line in lines])


async def test_an_id_that_another_begins_with_aborts_its_own_alone(admin: Any, engine: FakeEngine) -> None:
    """Clients of /inference/v1/generate choose theirs."""
    engine.hold(after_tokens=1)
    body = {"token_ids": [1, 2], "sampling_params": {}, "stream": True}
    clients = {"authorization": "Bearer for-clients"}

    def begin(request_id: str) -> Any:
        return admin.http.stream(
            "POST", "/inference/v1/generate", json={**body, "request_id": request_id}, headers=clients
        )

    async with begin("job") as job, begin("job-1") as other:
        lines, other_lines = job.aiter_lines(), other.aiter_lines()
        await anext(lines)
        await anext(other_lines)
        assert (await admin.http.post("/abort", json={"request_ids": ["job"]})).json() == {"num_aborted": 1}
        assert '"code":"aborted"' in "".join([line async for line in lines])
        engine.release()
        assert "[DONE]" in "".join([line async for line in other_lines])


async def test_one_prompt_of_several_is_aborted_by_its_place(admin: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=1)
    clients = {"authorization": "Bearer for-clients"}
    body = {"prompt": ["one", "two"], "stream": True}
    async with admin.http.stream("POST", "/v1/completions", json=body, headers=clients) as response:
        lines = response.aiter_lines()
        answer_id = (await anext(lines)).partition('"id":"')[2].partition('"')[0]
        assert (await admin.http.post("/abort", json={"request_ids": [f"{answer_id}-1"]})).json() == {"num_aborted": 1}
        assert '"code":"aborted"' in "".join([line async for line in lines])


async def test_all_requests_are_aborted_at_once(admin: Any, engine: FakeEngine) -> None:
    engine.hold(after_tokens=1)
    clients = {"authorization": "Bearer for-clients"}
    body = {"prompt": ["one", "two"], "stream": True}
    async with admin.http.stream("POST", "/v1/completions", json=body, headers=clients) as response:
        lines = response.aiter_lines()
        await anext(lines)
        assert (await admin.http.post("/abort")).json() == {"num_aborted": 2}
        assert '"code":"aborted"' in "".join([line async for line in lines])
    assert engine.num_live == 0


async def test_a_full_server_still_listens_to_its_operator(engine: FakeEngine, serve: Any) -> None:
    settings = ServerSettings(port=0, admin_api_key=("for-operators",), max_concurrent_requests=1)
    engine.hold(after_tokens=1)
    async with serve(engine, settings) as server:
        body = {"prompt": "hello", "stream": True}
        async with server.http.stream("POST", "/v1/completions", json=body) as response:
            await anext(response.aiter_lines())
            assert (await server.http.post("/v1/completions", json={"prompt": "x"})).status_code == 503
            assert (await server.http.post("/abort", headers=KEY)).json() == {"num_aborted": 1}


@pytest.mark.parametrize(
    ("request_line", "body", "param"),
    [
        ("/sleep?level=deep", None, "level"),
        ("/sleep?level=7", None, "level"),
        ("/sleep?mode=wait", None, "mode"),
        ("/wake_up?tags=other", None, "tags"),
        ("/reset_prefix_cache?reset_external=true", None, "reset_external"),
        ("/start_profile", {"max_iterations": 5}, "max_iterations"),
        ("/abort", {"request_ids": "one"}, "request_ids"),
    ],
)
async def test_a_bad_request_names_the_field(admin: Any, request_line: str, body: Any, param: str) -> None:
    response = await admin.http.post(request_line, json=body) if body else await admin.http.post(request_line)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_key_that_no_header_can_carry_stops_the_start() -> None:
    with pytest.raises(SettingsError) as refused:
        ServerSettings(admin_api_key=("",))
    assert refused.value.param == "admin_api_key"
