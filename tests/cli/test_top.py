"""`headrace top`: one frame of everything, and a connection that breaks."""

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from rich.console import Console
from tests.gateway.sample_snapshot import endpoint, snapshot

from headrace.cli.main import main
from headrace.cli.top import _news, _states
from headrace.cli.top_frame import frame
from headrace.gateway.admin.snapshot import Snapshot
from headrace.openai.sse import encode_event


def drawn(state: Snapshot, *, width: int = 140, height: int | None = None, trouble: str | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, height=height or 60, color_system=None)
    console.print(frame(state, width=width, height=height, trouble=trouble))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_frame_shows_what_the_dashboard_shows() -> None:
    text = drawn(snapshot())

    for shown in (
        "2 of 3 endpoints healthy",
        "no answer to a probe within 2 s",
        "half open",
        "48.2",
        "71.3%",
        "in place",
        "evals <nightly>",
        "182.40",
        "spill: holds 0 tokens",
        "upstream timeout",
        "Redis does not answer",
        "waiting: 2 interactive, 11 batch",
    ):
        assert shown in text


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_frame_is_never_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, drawn(snapshot(), width=width).splitlines())) <= width


def test_a_low_terminal_gets_the_youngest_decisions() -> None:
    text = drawn(snapshot(decisions=snapshot().decisions * 5), height=30)

    assert text.count("spill") <= 2
    assert len(text.splitlines()) <= 34


def test_a_gateway_that_has_seen_nothing_is_shown_too() -> None:
    empty = snapshot(endpoints=[], parity=[], decisions=[], hit_ratio=None)
    empty.tokenization.lanes = []
    empty.admission.keys = []

    assert "0 of 0 endpoints healthy" in drawn(empty)


def test_text_of_others_is_no_markup() -> None:
    assert "[red]x[/red]" in drawn(snapshot(endpoints=[endpoint(1, name="http://[red]x[/red]")]))


class Gateway:
    """Answers the requests to an admin port with prepared bytes, one connection after the other."""

    def __init__(self, *answers: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answers = answers
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._listener.accept()
            with connection:
                while b"\r\n\r\n" not in connection.recv(65536):
                    pass
                connection.sendall(answer)

    def close(self) -> None:
        self._thread.join(20)
        self._listener.close()


@contextmanager
def gateway(*answers: bytes) -> Iterator[Gateway]:
    server = Gateway(*answers)
    try:
        yield server
    finally:
        server.close()


def events(*states: Snapshot) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    return head + b"".join(encode_event(msgspec.json.encode(state)) for state in states)


def answer(body: bytes, *, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(body), body)


@pytest.mark.integration
def test_once_prints_the_state_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(answer(msgspec.json.encode(snapshot()))) as server:
        assert main(["top", server.url.removeprefix("http://"), "--once"]) == 0

    assert "2 of 3 endpoints healthy" in capsys.readouterr().out


@pytest.mark.integration
def test_an_older_or_newer_gateway_is_understood() -> None:
    fields = msgspec.json.decode(msgspec.json.encode(snapshot()))
    del fields["times"], fields["endpoints"][0]["hit_ratio"]
    fields["something_new"] = {"a": 1}
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    with gateway(head + encode_event(msgspec.json.encode(fields))) as server:
        (state,) = list(_states(server.url))

    assert "half open" in drawn(state)


@pytest.mark.integration
def test_a_connection_that_breaks_is_told_and_made_anew() -> None:
    first, second = snapshot(num_requests=1), snapshot(num_requests=2)
    cut = events(first)[:-20]
    with gateway(events(first), answer(b"{}", status=503), cut, events(second)) as server:
        pauses_s: list[float] = []
        news = _news(server.url, wait=pauses_s.append)
        told = [next(news) for _ in range(5)]

    assert [one.num_requests if isinstance(one, Snapshot) else one.partition(";")[2] for one in told] == [
        1, " trying again", " is it the gateway's admin port?; trying again", " trying again", 2,
    ]  # fmt: skip
    assert pauses_s == [0.5, 1.0, 2.0]


@pytest.mark.integration
@pytest.mark.parametrize(("body", "status"), [(b"nothing", 200), (b"{}", 404)])
def test_what_is_no_gateway_is_said(body: bytes, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(answer(body, status=status)) as server:
        assert main(["top", server.url, "--once"]) == 1

    assert server.url in capsys.readouterr().err


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert main(["top", f"127.0.0.1:{port}", "--once"]) == 1

    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://[::1"])
def test_what_is_no_address_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", url, "--once"]) == 2
    assert "is no address" in capsys.readouterr().err
