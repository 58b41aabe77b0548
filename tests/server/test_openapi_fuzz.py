"""Schemathesis reads the OpenAPI document and tries the server with what that allows, and with what it does not.

No request may be answered with a 5xx, by a status, a type or a body that the document does not have, and what the
document forbids is refused. The default run is short; `-m slow` tries more.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
import uvloop
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from headrace.server.api_table import OPERATIONS
from headrace.server.openapi import openapi_document
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

KEY = "a-key"
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
    ignored_auth,
]


def read_document(*, with_coverage: bool) -> Any:
    """Coverage is schemathesis's list of cases at the borders of each field; random ones come besides."""
    document = msgspec.json.decode(msgspec.json.encode(openapi_document(OPERATIONS)))
    schema = schemathesis.openapi.from_dict(document)
    schema.config.phases.coverage.enabled = with_coverage
    return schema


quick = read_document(with_coverage=False)
thorough = read_document(with_coverage=True)


async def _serve(serve: Callable[..., Any], tell: Callable[[str], None], stop: asyncio.Event) -> None:
    keys = ServerSettings(api_key=(KEY,), admin_api_key=(KEY,), allow_runtime_lora=True)
    async with FakeEngine() as engine, serve(engine, keys) as server:
        tell(server.url)
        await stop.wait()


@pytest.fixture(scope="module")
def base_url(serve_anywhere: Callable[..., Any]) -> Iterator[str]:
    """A server on a loop and a thread of its own: schemathesis's client blocks."""
    told = threading.Event()
    urls: list[str] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        await _serve(serve_anywhere, lambda url: (urls.append(url), told.set())[1], stop)

    thread = threading.Thread(target=lambda: uvloop.run(main()))
    thread.start()
    assert told.wait(20)
    yield urls[0]
    loop, stop = loops[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    assert not thread.is_alive()


def try_out(case: Any, base_url: str) -> None:
    # Parameters of a query that nobody knows are skipped, which schemathesis takes for accepting what is forbidden.
    is_query = case.path in ("/sleep", "/wake_up")
    checks = [check for check in CHECKS if not (is_query and check is negative_data_rejection)]
    case.call_and_validate(base_url=base_url, headers={"Authorization": f"Bearer {KEY}"}, checks=checks, timeout=20)


COMMON = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@quick.parametrize()
@settings(max_examples=8, **COMMON)
def test_the_server_keeps_to_its_document(case: Any, base_url: str) -> None:
    try_out(case, base_url)


@pytest.mark.slow
@pytest.mark.timeout(600)
@thorough.parametrize()
@settings(max_examples=300, **COMMON)
def test_the_server_keeps_to_its_document_whatever_comes(case: Any, base_url: str) -> None:
    try_out(case, base_url)
