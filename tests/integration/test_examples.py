"""The programs in examples/ run as their first lines say."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.service import DEMO_MODEL, Service

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(example: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_embedded_engine_answers_the_question_it_is_given() -> None:
    assert "19" in output_of("engine_stream.py", str(DEMO_MODEL), "What is 12 plus 7?")


def test_the_openai_client_gets_a_story_from_the_gateway(service: Service) -> None:
    assert len(output_of("openai_client.py", f"{service.url}/v1").split()) > 20
