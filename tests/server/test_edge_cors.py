"""Pages of allowed origins may call the server from a browser, and no others."""

from typing import Any

import pytest

from headrace.errors import SettingsError
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

OURS = {"origin": "https://chat.example.org"}
OTHER = {"origin": "https://evil.example.org"}
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
ALLOWED = ServerSettings(allowed_origins=("https://chat.example.org",), api_key=("key",))


async def test_without_origins_no_page_may_call(server: Any) -> None:
    response = await server.http.get("/version", headers=OURS)
    assert "access-control-allow-origin" not in response.headers
    assert (await server.http.options("/v1/completions", headers={**OURS, **PREFLIGHT})).status_code == 405


async def test_a_page_of_an_allowed_origin_may_ask_before_it_has_shown_a_key(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ALLOWED) as server:
        response = await server.http.options("/v1/completions", headers={**OURS, **PREFLIGHT})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == OURS["origin"]
    assert "POST" in response.headers["access-control-allow-methods"]
    assert "authorization" in response.headers["access-control-allow-headers"].lower()


async def test_answers_and_errors_can_be_read_by_it(engine: FakeEngine, serve: Any) -> None:
    def broken(prompt: object) -> list[int]:
        raise ZeroDivisionError

    async with serve(engine, ALLOWED) as server:
        keyless = await server.http.post("/v1/completions", json={"prompt": "x"}, headers=OURS)
        key = {"authorization": "Bearer key", **OURS}
        good = await server.http.post("/v1/completions", json={"prompt": "x"}, headers=key)
        engine._answer = broken
        defect = await server.http.post("/v1/completions", json={"prompt": "x"}, headers=key)
    assert [response.status_code for response in (keyless, good, defect)] == [401, 200, 500]
    for response in (keyless, good, defect):
        assert response.headers["access-control-allow-origin"] == OURS["origin"]
        assert "x-request-id" in response.headers["access-control-expose-headers"].lower()


async def test_a_page_of_another_origin_may_not(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ALLOWED) as server:
        asked = await server.http.options("/v1/completions", headers={**OTHER, **PREFLIGHT})
        read = await server.http.get("/version", headers=OTHER)
    assert asked.status_code == 400
    assert "access-control-allow-origin" not in asked.headers
    assert "access-control-allow-origin" not in read.headers


async def test_every_origin_means_every_one_but_never_with_credentials(engine: FakeEngine, serve: Any) -> None:
    async with serve(engine, ServerSettings(allowed_origins=("*",), allowed_methods=("GET",))) as server:
        read = await server.http.get("/version", headers=OTHER)
        asked = await server.http.options("/v1/completions", headers={**OTHER, **PREFLIGHT})
    assert read.headers["access-control-allow-origin"] == "*"
    assert asked.status_code == 400  # POST is not among the methods
    with pytest.raises(SettingsError) as caught:
        ServerSettings(allowed_origins=("*",), allow_credentials=True)
    assert caught.value.param == "allow_credentials"


@pytest.mark.parametrize("origin", ["chat.example.org", "https://chat.example.org/", ""])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ServerSettings(allowed_origins=(origin,))
    assert caught.value.param == "allowed_origins"
