"""`headrace demo` as a person runs it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest

from headrace.cli.demo import Outcome
from tests.integration.service import DEMO_MODEL

pytestmark = pytest.mark.integration


def demo(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli.main", "demo", "--model", str(DEMO_MODEL), *arguments]


def processes_of_session_children(pid: int) -> set[int]:
    """Every live descendant of `pid`."""
    found: set[int] = set()
    todo = [pid]
    while todo:
        children = Path(f"/proc/{todo[-1]}/task/{todo.pop()}/children")
        new = {int(child) for child in children.read_text().split()} if children.exists() else set()
        found |= new
        todo += new
    return found


def test_once_ends_with_a_json_line_that_tells_what_happened() -> None:
    finished = subprocess.run(demo("--once"), capture_output=True, text=True, timeout=55, check=False)

    assert finished.returncode == 0, finished.stderr
    outcome = msgspec.json.decode(finished.stdout.splitlines()[-1], type=Outcome)
    assert outcome.text.strip()
    assert outcome.text in finished.stdout
    assert outcome.tokens > 10
    assert outcome.prompt_tokens_predicted == outcome.prompt_tokens_used
    assert 0 < outcome.ready_s < outcome.first_token_s


def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    finished = subprocess.run(
        demo("--once", "--model", str(tmp_path)), capture_output=True, text=True, timeout=30, check=False
    )

    assert finished.returncode == 2
    assert str(tmp_path) in finished.stderr


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the demo's processes by /proc")
def test_ctrl_c_ends_every_process() -> None:
    process = subprocess.Popen(demo(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        seen = ""
        for line in process.stderr:
            seen += line
            if "Ctrl-C" in line:
                break
        endpoint = next(word for word in seen.split() if word.endswith("/v1"))
        dashboard = seen.split("dashboard")[1].split()[0]
        children = processes_of_session_children(process.pid)

        assert httpx.get(f"{endpoint}/models").status_code == 200
        assert "<html" in httpx.get(dashboard).text
        assert len(children) == 5

        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=20)
        assert process.returncode == 0, rest
        assert not any(Path(f"/proc/{child}").exists() for child in children)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
