"""The commands of the pages do what they say: run block after block, in a folder like a checkout, on free ports."""

import asyncio
import re
import shutil
import socket
from pathlib import Path

import httpx
import pytest

from headrace.testing.fake_upstream import FakeUpstream
from tests.docs.blocks import Block, blocks, one_line
from tests.docs.terminals import Terminals, is_server, terminals_in
from tests.docs.ways import PAGES_WITH_SERVERS, SLOW, SURROUNDINGS, SlowRun, Surroundings, meant_by, run_elsewhere

_RUN_ELSEWHERE = run_elsewhere()
_BEHIND_FAKES = "docs/operations.md"
"""Any engine and a collector of traces are there before the page begins."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("curl") is None or shutil.which("bash") is None, reason="needs bash and curl"),
]


def commands_to_run(block: Block) -> list[str]:
    return [command for command in block.commands if one_line(command) not in _RUN_ELSEWHERE]


def pages_to_run() -> list[str]:
    """Those with commands for the default suite."""
    return sorted({block.page for block in blocks("sh") if commands_to_run(block)})


def run_page(page: str, terminals: Terminals) -> str:
    """What its commands have written."""
    surroundings = SURROUNDINGS.get(page, Surroundings())
    output = ""
    for block in (block for block in blocks("sh", "python") if block.page == page):
        if block.language == "sh":
            output += run_commands(commands_to_run(block), terminals, surroundings)
        elif page in PAGES_WITH_SERVERS:
            output += terminals.run("python", block.text)
    terminals.wait_ready()
    return output


def run_commands(
    commands: list[str], terminals: Terminals, surroundings: Surroundings, *, timeout_s: float = 60.0
) -> str:
    """Servers in terminals of their own, and the others together, as a block is pasted."""
    pasted = []
    for command in commands:
        for what, by in surroundings.replaced.items():
            command = command.replace(what, by)
        if is_server(command):
            terminals.start(command)
        else:
            pasted.append(command)
    return terminals.run("sh", "\n".join(pasted), timeout_s=timeout_s) if pasted else ""


def surround(folder: Path, surroundings: Surroundings) -> None:
    for name, text in surroundings.files.items():
        (folder / name).write_text(text)
    for name, target in surroundings.links.items():
        (folder / name).symlink_to(target)


def assert_shown(output: str, patterns: tuple[str, ...]) -> None:
    """They are there, one after the other."""
    position = 0
    for pattern in patterns:
        found = re.compile(pattern).search(output, position)
        assert found is not None, f"{pattern} is not in the rest of\n{output}"
        position = found.end()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page for page in pages_to_run() if page != _BEHIND_FAKES])
def test_the_commands_of_a_page_work_one_after_the_other(page: str, tmp_path: Path) -> None:
    surroundings = SURROUNDINGS.get(page, Surroundings())
    surround(tmp_path, surroundings)
    with terminals_in(tmp_path, environment=surroundings.environment) as terminals:
        output = run_page(page, terminals)

    assert_shown(output, surroundings.shows)


@pytest.mark.timeout(300)
async def test_the_commands_for_operators_work_before_any_engine_and_collector(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="needs headrace[otel]")
    surroundings = SURROUNDINGS[_BEHIND_FAKES]
    async with FakeUpstream() as engine, FakeUpstream() as collector:
        ports = {"8000": str(engine.port), "4318": str(collector.port)}
        with terminals_in(tmp_path, ports=ports, environment=surroundings.environment) as terminals:
            output = await asyncio.to_thread(run_page, _BEHIND_FAKES, terminals)
            async with httpx.AsyncClient(timeout=60) as client:
                chat = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
                url = f"http://127.0.0.1:{terminals.port('8080')}/v1/chat/completions"
                refused = await client.post(url, json=chat)
            await asyncio.to_thread(terminals.stop)

    assert_shown(output, surroundings.shows)
    assert refused.status_code == 503, "its only endpoint drains"
    assert {one.target for one in collector.received} == {"/v1/traces"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("run", SLOW, ids=lambda run: run.commands[0][:60])
def test_what_takes_long_works_as_it_stands(run: SlowRun, tmp_path: Path) -> None:
    if run.needs is not None and not run.needs.exists():
        pytest.skip(f"{run.needs} is not there")
    if run.has_own_ports and any(is_taken(port) for port in (8080, 8081)):
        pytest.skip("needs the ports 8080 and 8081")
    surround(tmp_path, run.surroundings)
    written = {one_line(command): command for block in blocks("sh") for command in block.commands}
    commands = [*run.before, *(written[command] for line in run.commands for command in meant_by(line))]
    commands[-1] = f"{commands[-1]} {run.added}".rstrip()
    ports = {str(port): str(port) for port in (8080, 8081)} if run.has_own_ports else {}
    with terminals_in(tmp_path, ports=ports, environment=run.surroundings.environment) as terminals:
        output = run_commands(commands, terminals, run.surroundings, timeout_s=run.timeout_s)
        terminals.wait_ready()

    assert_shown(output, run.surroundings.shows)


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
