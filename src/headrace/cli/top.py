"""`headrace top URL`: the gateway's dashboard in a terminal, live."""

import argparse
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import httpx
import msgspec
from rich.console import Console, RenderableType
from rich.live import Live

from headrace.cli.top_frame import frame
from headrace.errors import SettingsError, UpstreamError
from headrace.gateway.admin.snapshot import Snapshot
from headrace.openai.sse import SseDecoder

_SILENT_S = 10.0
_RETRY_FIRST_S = 0.5
_RETRY_LAST_S = 5.0
_DEFAULT_URL = "http://127.0.0.1:8081"


def run(argv: Sequence[str]) -> int:
    """Show the gateway until Ctrl-C; the exit status."""
    arguments = _parser().parse_args(argv)
    url = _checked(arguments.url)
    console = Console()
    if arguments.once:
        console.print(frame(_state(url), width=console.width, height=None))
    else:
        _follow(url, console)
    return 0


def _follow(url: str, console: Console) -> None:
    latest: Snapshot | None = None
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        for news in _news(url, wait=threading.Event().wait):
            latest = news if isinstance(news, Snapshot) else latest
            trouble = news if isinstance(news, str) else None
            live.update(_shown(latest, trouble, console), refresh=True)


def _shown(latest: Snapshot | None, trouble: str | None, console: Console) -> RenderableType:
    if latest is None:
        return trouble or "connecting"
    return frame(latest, width=console.width, height=console.height, trouble=trouble)


def _news(url: str, *, wait: Callable[[float], object]) -> Iterator[Snapshot | str]:
    """States as they come, and between them what is wrong with the connection, which is mended for ever, after `wait`
    of so many seconds."""
    pause_s = _RETRY_FIRST_S
    while True:
        try:
            for state in _states(url):
                pause_s = _RETRY_FIRST_S
                yield state
            trouble = "the gateway has ended the connection"
        except (httpx.HTTPError, UpstreamError) as error:
            trouble = str(error) or type(error).__name__
        yield f"{trouble}; trying again"
        wait(pause_s)
        pause_s = min(_RETRY_LAST_S, 2 * pause_s)


def _states(url: str) -> Iterator[Snapshot]:
    decoder = SseDecoder()
    with httpx.stream("GET", f"{url}/events", timeout=httpx.Timeout(5.0, read=_SILENT_S)) as answer:
        _check_status(answer, url)
        for data in answer.iter_bytes():
            for event in decoder.feed(data):
                yield _decoded(event, url)


def _state(url: str) -> Snapshot:
    """The state now. Raises UpstreamError."""
    try:
        answer = httpx.get(f"{url}/state", timeout=5.0)
    except httpx.HTTPError as error:
        raise UpstreamError(f"{url} cannot be asked: {error}; is it the gateway's admin port?") from error
    _check_status(answer, url)
    return _decoded(answer.content, url)


def _check_status(answer: httpx.Response, url: str) -> None:
    if answer.status_code != 200:
        raise UpstreamError(f"{url} answered {answer.status_code}; is it the gateway's admin port?")


def _decoded(data: bytes, url: str) -> Snapshot:
    try:
        return msgspec.json.decode(data, type=Snapshot)
    except msgspec.MsgspecError as error:
        raise UpstreamError(f"{url} does not tell a gateway's state: {error}") from error


def _checked(url: str) -> str:
    full = url if "://" in url else f"http://{url}"
    with contextlib.suppress(httpx.InvalidURL):
        if httpx.URL(full).host and full.startswith(("http://", "https://")):
            return full.rstrip("/")
    raise SettingsError(f"{url!r} is no address; give the admin port, such as {_DEFAULT_URL}", param="url")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace top", description="Show what a gateway does, live.")
    parser.add_argument("url", nargs="?", default=_DEFAULT_URL, help="the gateway's admin port (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="print the state now, and end")
    return parser
