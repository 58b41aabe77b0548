"""The reference of headers and routes is made from the code, and leaves nothing out."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from starlette.routing import Route

from headrace.gateway.admin.broadcast import Broadcast
from headrace.gateway.admin.endpoint_routes import AdminApi
from headrace.gateway.admin.server import admin_app
from headrace.gateway.http.own_headers import OWN_HEADERS
from headrace.testing.fake_upstream import FakeUpstream
from tests.gateway.support import exchange, running_gateway

ROOT = Path(__file__).resolve().parents[2]
GATEWAY = ROOT / "src" / "headrace" / "gateway"
_FIELD = re.compile(r'"(x-headrace-[a-z-]+)"')


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield importlib.import_module("write_reference")
        sys.modules.pop("write_reference")


@pytest.mark.parametrize("name", ["headers.md", "routes.md"])
def test_a_page_of_the_reference_is_current(reference: ModuleType, name: str) -> None:
    assert set(reference.PAGES) == {path.name for path in reference.FOLDER.iterdir()}
    text = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert text == reference.PAGES[name](), "run scripts/write_reference.py"


def test_every_header_of_the_gateways_own_stands_in_the_table() -> None:
    named = {field for path in GATEWAY.rglob("*.py") for field in _FIELD.findall(path.read_text(encoding="utf-8"))}
    assert named == {one.name.decode() for one in OWN_HEADERS}


def test_every_route_of_the_admin_port_is_described(reference: ModuleType) -> None:
    async def nothing() -> bytes:
        return b""

    control: Any = None  # nothing is asked of it
    app = admin_app(
        expose_metrics=nothing,
        health=lambda: (200, b""),
        snapshots=Broadcast(max_listeners=1),
        more=AdminApi(control, key=None).routes(),
    )
    served = {
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or ())
        if method != "HEAD"
    }
    assert served == {(one.method, one.path) for one in reference.ADMIN_ROUTES}


@pytest.mark.integration
async def test_the_gateway_answers_the_routes_that_are_said_to_be_its_own(reference: ModuleType) -> None:
    async with FakeUpstream() as upstream, running_gateway(upstream) as gateway:
        for route in reference.GATEWAY_ROUTES:
            path = route.path.replace("{model}", next(iter(gateway.fleet.models)))
            answer = await exchange(gateway, f"{route.method} {path} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode())
            assert answer.status == 200, path
        assert not upstream.received
