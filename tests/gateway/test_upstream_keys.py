"""Whose key an endpoint is shown: its own, else the client's, never one of the gateway's."""

import asyncio
import logging
from pathlib import Path

import pytest

from headrace.errors import SettingsError
from headrace.gateway.admission.key_file import KeyEntry, hash_text, write_entries
from headrace.gateway.admission.keys import digest_of
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.settings import upstream_keys
from headrace.testing.fake_upstream import FakeUpstream
from tests.gateway.support import chat_request, exchange, running_gateway

UPSTREAM_KEY = "sk-upstream-0123456789"
CLIENTS = "Authorization: Bearer hr-alice\r\nX-Api-Key: hr-alice\r\n"
TIMEOUT_S = 20.0


def with_keys(path: Path) -> AdmissionSettings:
    file = path / "keys.yaml"
    write_entries(file, [KeyEntry(name="alice", hash=hash_text(digest_of(b"hr-alice")))])
    return AdmissionSettings(keys_file=str(file))


@pytest.mark.integration
async def test_an_endpoint_is_shown_its_own_key_by_requests_and_probes_alike() -> None:
    async with (
        FakeUpstream() as upstream,
        running_gateway(upstream, upstream_api_key=(f"{upstream.url}={UPSTREAM_KEY}", "other")) as gateway,
    ):
        await exchange(gateway, chat_request(extra=CLIENTS))
        async with asyncio.timeout(TIMEOUT_S):
            await upstream.wait_for(lambda: "/openapi.json" in {one.target for one in upstream.probes})

    shown = [
        [value for name, value in one.headers if name in ("authorization", "x-api-key")] for one in upstream.probes
    ]
    assert {tuple(values) for values in shown} == {(f"Bearer {UPSTREAM_KEY}",)}
    (received,) = upstream.received
    assert [value for name, value in received.headers if name == "authorization"] == [f"Bearer {UPSTREAM_KEY}"]
    assert received.header("x-api-key") is None


@pytest.mark.integration
async def test_a_key_of_the_gateway_goes_no_further(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream, admission=with_keys(tmp_path)) as gateway:
        answer = await exchange(gateway, chat_request(extra=CLIENTS))

    assert answer.status == 200
    assert (upstream.received[0].header("authorization"), upstream.received[0].header("x-api-key")) == (None, None)


@pytest.mark.integration
async def test_without_keys_here_a_client_shows_its_own() -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        await exchange(gateway, chat_request(extra=CLIENTS))

    assert upstream.received[0].header("authorization") == "Bearer hr-alice"
    assert upstream.received[0].header("x-api-key") == "hr-alice"


@pytest.mark.integration
async def test_no_log_line_and_no_repr_shows_a_key(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        FakeUpstream() as upstream,
        running_gateway(upstream, admission=with_keys(tmp_path), upstream_api_key=(UPSTREAM_KEY,)) as gateway,
    ):
        await exchange(gateway, chat_request(extra=CLIENTS))
        (endpoint,) = gateway.fleet.endpoints
        written = [caplog.text, *map(repr, (gateway, gateway.fleet, endpoint, endpoint.spec, endpoint.pool))]

    assert not [text for text in written if UPSTREAM_KEY in text or "hr-alice" in text]


def test_keys_are_given_for_one_endpoint_or_for_all_others() -> None:
    keys = upstream_keys(("http://h:1/v1=a=b==", "c"))

    assert keys == {"http://h:1": "a=b==", None: "c"}


@pytest.mark.parametrize("entries", [("a b",), ("",), ("http://h:1=",), ("a", "b"), ("http://h:1=a", "http://h:1=b")])
def test_unusable_or_doubled_keys_stop_the_start(entries: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError) as caught:
        upstream_keys(entries)

    assert caught.value.param == "upstream_api_key"
