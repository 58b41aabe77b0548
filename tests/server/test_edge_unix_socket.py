"""`uds`: a Unix socket instead of host and port."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.aio.stop import StopRequest
from headrace.aio.tasks import TaskOwner
from headrace.errors import SettingsError
from headrace.server.listener import bound_unix_listener, open_listener, url_of
from headrace.server.run import serve_engine
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.integration


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.sock"


@contextlib.contextmanager
def a_server_at(path: Path) -> Iterator[None]:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as other:
        other.bind(str(path))
        other.listen()
        yield


async def test_it_is_served_and_removed_afterwards(engine: FakeEngine, path: Path) -> None:
    stop = StopRequest()
    settings = ServerSettings(uds=str(path), ready_file=str(path.with_name("ready.json")))
    async with TaskOwner("test") as owner:
        with open_listener(settings) as listener:
            ended = owner.spawn(serve_engine(engine, settings, listener=listener, stop=stop), name="server")
            transport = httpx.AsyncHTTPTransport(uds=str(path), retries=50)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                response = await http.post("/v1/completions", json={"prompt": "abc"})
                assert response.json()["choices"][0]["text"] == "abc"
            assert url_of(listener) == f"unix:{path}"
            stop.request()
            await asyncio.wait_for(ended, timeout=10)
    assert not path.exists()  # noqa: ASYNC240 - nothing runs any more


def test_a_stale_socket_is_replaced(path: Path) -> None:
    with a_server_at(path):
        pass
    assert path.is_socket()
    with bound_unix_listener(str(path)) as listener:
        listener.listen()
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(path))
    assert not path.exists()


def test_a_socket_that_a_server_listens_on_is_left_to_it(path: Path) -> None:
    with a_server_at(path), pytest.raises(SettingsError, match="already") as caught, bound_unix_listener(str(path)):
        pass
    assert caught.value.param == "uds"
    assert path.is_socket()


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(SettingsError, match="no socket"), bound_unix_listener(str(path)):
        pass
    assert path.read_text() == "precious"


def test_a_path_that_another_has_taken_meanwhile_is_not_removed(path: Path) -> None:
    with bound_unix_listener(str(path)):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


@pytest.mark.parametrize("place", ["missing/server.sock", "x" * 200])
def test_a_path_that_cannot_be_bound_is_said(tmp_path: Path, place: str) -> None:
    with pytest.raises(SettingsError, match="cannot listen") as caught, bound_unix_listener(str(tmp_path / place)):
        pass
    assert caught.value.param == "uds"
