"""`headrace demo`: two engine servers with the demo model, the gateway in front of them, and one streaming chat.

Prints where the endpoint and the dashboard are and stays up until Ctrl-C. With `--once` it ends after the chat with one
JSON line on standard output.
"""

import argparse
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from headrace.cli.fleet import Child, Fleet
from headrace.cli.stream_chat import Answer, stream_chat
from headrace.errors import SettingsError
from headrace.ready_file import Address

_HOST = "127.0.0.1"
_GATEWAY_PORT = 8080
_ADMIN_PORT = 8081
_QUESTION = "Tell me a short story about a fox."
_READY_TIMEOUT_S = 120.0
_WATCH_S = 0.5


class Outcome(msgspec.Struct, kw_only=True):
    """The last line of `headrace demo --once`. Times are seconds from the start of the command."""

    ready_s: float
    first_token_s: float
    tokens: int
    text: str
    prompt_tokens_predicted: int | None
    prompt_tokens_used: int
    endpoint: str


def run(argv: Sequence[str]) -> int:
    """Run the demo; the exit status."""
    started_at = time.monotonic()
    arguments = _parser().parse_args(argv)
    if not Path(arguments.model, "config.json").is_file():
        raise SettingsError(f"--model {arguments.model}: no model here; run from the repository's root, or name one")
    if arguments.engines < 1:
        raise SettingsError(f"--engines is {arguments.engines}; it must be 1 or more", param="engines")
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell starts background jobs with it ignored
        signal.signal(number, _interrupt)
    console = Console(stderr=True, highlight=False)
    with Fleet() as fleet:
        gateway = _start(fleet, arguments, console)
        ready_at = time.monotonic()
        answer = _chat(gateway, Path(arguments.model).name, console)
        endpoint = f"{gateway.url}/v1"
        if arguments.once:
            _print_outcome(answer, started_at=started_at, ready_at=ready_at, endpoint=endpoint)
            return 0
        _print_addresses(console, endpoint=endpoint, dashboard=gateway.admin_url, model=Path(arguments.model).name)
        return _stay(fleet, console)


def _start(fleet: Fleet, arguments: argparse.Namespace, console: Console) -> Address:
    with _progress(console) as progress:
        engines = [_start_engine(fleet, arguments.model, number + 1) for number in range(arguments.engines)]
        addresses = _wait(fleet, engines, progress)
        gateway = fleet.start("gateway", _gateway_arguments(addresses, once=arguments.once))
        return _wait(fleet, [gateway], progress)[0]


def _start_engine(fleet: Fleet, model: str, number: int) -> Child:
    # One compute thread each: the engines of the demo share a small machine.
    return fleet.start(f"engine-{number}", ["serve", model, "--host", _HOST, "--port", "0", "--cpu-threads", "1"])


def _gateway_arguments(engines: Sequence[Address], *, once: bool) -> list[str]:
    port, admin_port = (0, 0) if once else (_free_or_any(_GATEWAY_PORT), _free_or_any(_ADMIN_PORT))
    ports = ["--port", str(port), "--admin-port", str(admin_port)]
    endpoints = [argument for engine in engines for argument in ("--endpoint", engine.url)]
    return ["gateway", "--host", _HOST, "--admin-host", _HOST, *ports, *endpoints]


def _wait(fleet: Fleet, children: Sequence[Child], progress: Progress) -> list[Address]:
    tasks = {child: progress.add_task(f"{child.name} starting", total=1) for child in children}

    def on_ready(child: Child) -> None:
        progress.update(tasks[child], description=f"{child.name} ready", completed=1)

    return fleet.wait_ready(children, timeout_s=_READY_TIMEOUT_S, on_ready=on_ready)


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield progress


def _chat(gateway: Address, model: str, console: Console) -> Answer:
    console.print(f"\n[bold]{_QUESTION}")

    def on_text(text: str) -> None:
        print(text, end="", flush=True)

    answer = stream_chat(gateway.url, model=model, question=_QUESTION, on_text=on_text)
    print(flush=True)
    return answer


def _print_outcome(answer: Answer, *, started_at: float, ready_at: float, endpoint: str) -> None:
    outcome = Outcome(
        ready_s=round(ready_at - started_at, 3),
        first_token_s=round(answer.first_token_at - started_at, 3),
        tokens=answer.num_tokens,
        text=answer.text,
        prompt_tokens_predicted=answer.prompt_tokens_predicted,
        prompt_tokens_used=answer.prompt_tokens_used,
        endpoint=endpoint,
    )
    print(msgspec.json.encode(outcome).decode(), flush=True)


def _print_addresses(console: Console, *, endpoint: str, dashboard: str | None, model: str) -> None:
    body = f'{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"What is 12 plus 7?"}}]}}'
    console.print(f"\nendpoint   [cyan]{endpoint}[/]\ndashboard  [cyan]{dashboard}[/]\n\ntry")
    console.print(
        f"  curl -N {endpoint}/chat/completions -H 'content-type: application/json' -d '{body}'", soft_wrap=True
    )
    console.print("\nCtrl-C ends everything.")


def _stay(fleet: Fleet, console: Console) -> int:
    """Keep the fleet up until Ctrl-C. An engine that dies is told, and the gateway goes on with the other."""
    told: set[Child] = set()
    try:
        while True:
            for child in fleet.ended():
                if child.name == "gateway":
                    console.print(f"the gateway ended with status {child.process.returncode}:\n{child.log_tail()}")
                    return 1
                if child not in told:
                    told.add(child)
                    console.print(f"{child.name} ended with status {child.process.returncode}; the other goes on")
            threading.Event().wait(_WATCH_S)
    except KeyboardInterrupt:
        console.print("\nstopping")
        return 0


def _free_or_any(port: int) -> int:
    """`port`, or 0 (any free port) when something else listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return 0
    return port


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after one chat with a JSON line on standard output")
    parser.add_argument(
        "--model", default="models/demo", metavar="MODEL_DIR", help="what to serve (default: %(default)s)"
    )
    parser.add_argument("--engines", type=int, default=2, metavar="N", help="how many engines (default: %(default)s)")
    return parser
