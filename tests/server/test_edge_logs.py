"""What is logged of requests: one line each, as text or JSON, with the id that the client knows."""

import json
import logging
from typing import Any

import pytest

from headrace import log
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine

ACCESS = "headrace.server.access_log"


def access_lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == ACCESS]


@pytest.mark.integration
async def test_each_answer_is_a_line_with_its_id_status_and_duration(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    given = await server.http.post("/v1/completions?key=secret", json={"prompt": "x"}, headers={"x-request-id": "abc"})
    made_up = await server.http.get("/nothing")
    first, second = access_lines(caplog)
    assert (first.getMessage(), first.__dict__["status"]) == ("POST /v1/completions", 200)
    assert first.__dict__["request_id"] == given.headers["x-request-id"] == "abc"
    assert first.__dict__["duration_ms"] > 0
    assert first.__dict__["answer_id"] == given.json()["id"]
    assert second.__dict__["request_id"] == made_up.headers["x-request-id"]
    assert second.__dict__["status"] == 404
    assert not [record for record in caplog.records if record.name != "httpx" and "secret" in record.getMessage()]


@pytest.mark.integration
async def test_a_probes_line_is_for_debugging_only(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await server.http.get("/health")
    assert access_lines(caplog) == []
    caplog.set_level(logging.DEBUG)
    await server.http.get("/health")
    assert len(access_lines(caplog)) == 1


@pytest.mark.integration
async def test_access_lines_can_be_left_out(engine: FakeEngine, serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve(engine, ServerSettings(access_log=False)) as server:
        await server.http.get("/v1/models")
    assert access_lines(caplog) == []


@pytest.mark.integration
async def test_a_defect_is_logged_once_with_the_requests_id(
    engine: FakeEngine, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(prompt: object) -> list[int]:
        raise ZeroDivisionError("a secret")

    engine._answer = broken
    async with serve(engine) as server:
        response = await server.http.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": "abc"})
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "abc"
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.__dict__["request_id"] == "abc"


@pytest.mark.integration
async def test_a_path_cannot_forge_a_line(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await server.http.get("/a%0aERROR%20all%20is%20lost" + "x" * 1000)
    (record,) = access_lines(caplog)
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 300


def logged(capsys: pytest.CaptureFixture[str], log_format: log.LogFormat, message: str, **fields: object) -> str:
    """What one record becomes on standard error."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log.configure(log_format=log_format)
    try:
        logging.getLogger("some.module").warning("%s", message, extra=fields)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return capsys.readouterr().err


def test_a_json_line_has_the_records_fields_and_its_own_cannot_be_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    line = json.loads(logged(capsys, "json", "hello", request_id="abc", level="none", status=200))
    assert line["time"].endswith("+00:00")
    assert {name: line[name] for name in ("level", "logger", "message", "request_id", "status")} == {
        "level": "warning",
        "logger": "some.module",
        "message": "hello",
        "request_id": "abc",
        "status": 200,
    }


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("hostile", ["a\nERROR b", "a\r\nb", "a\x1b[2J", "a\u2028b", "a\ud800b", "a\x00b"])
def test_hostile_text_stays_on_its_line(
    capsys: pytest.CaptureFixture[str], log_format: log.LogFormat, hostile: str
) -> None:
    line = logged(capsys, log_format, hostile, field=hostile)
    assert len(line.splitlines()) == 1
    assert line[:-1].isprintable()
    if log_format == "json":
        assert json.loads(line)["message"] == json.loads(line)["field"] == hostile


def test_a_text_lines_fields_are_quoted_where_they_could_be_taken_for_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = logged(capsys, "text", "hello", plain="abc", spaced="a status=500", empty="")
    assert line.endswith('some.module: hello plain=abc spaced="a status=500" empty=""\n')


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_a_library_puts_on_every_record_is_no_field(
    capsys: pytest.CaptureFixture[str], log_format: log.LogFormat
) -> None:
    line = logged(capsys, log_format, "hello", mine="1", _library_stamp=17)
    assert "mine" in line
    assert "_library_stamp" not in line
