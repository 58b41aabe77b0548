import asyncio
import logging
import os
from pathlib import Path

import msgspec
import pytest

from headrace.gateway.telemetry.decision_file import DecisionFile
from headrace.gateway.telemetry.decisions import TracedDecision


def decision(number: int) -> TracedDecision:
    return TracedDecision(
        time_s=1.0,
        request_id=f"r{number}",
        model="demo",
        endpoint="e",
        reason="only endpoint",
        prompt_tokens=3,
        outcome="200",
        policy="prefix",
        timestamp=1,
        input_length=3,
        output_length=number,
        hash_ids=[],
    )


async def test_closing_loses_nothing_of_a_write_that_is_under_way(tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    os.mkfifo(path)  # whoever opens it for writing waits for a reader
    file = DecisionFile(path, share=1.0, max_bytes=1 << 20, draw=lambda _: 0)
    file.start()
    file.add(decision(1))
    async with asyncio.timeout(20):
        while file.statistics().num_waiting:
            await asyncio.sleep(0.01)
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(file.aclose())
            reading = group.create_task(asyncio.to_thread(path.read_bytes))

    assert closing.done()
    assert msgspec.json.decode(reading.result())["request_id"] == "r1"
    assert file.statistics().num_written == 1


async def test_each_row_of_failures_to_write_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "later" / "decisions"
    file = DecisionFile(path, share=1.0, max_bytes=1 << 20, draw=lambda _: 0)
    with caplog.at_level(logging.WARNING, logger="headrace.gateway.telemetry.decision_file"):
        for is_there in (False, False, True, False):
            path.unlink(missing_ok=True)
            if is_there:
                path.parent.mkdir()
            elif path.parent.exists():
                path.parent.rmdir()
            file.add(decision(1))
            await file.flush()

    assert (len(caplog.records), file.statistics().num_written, file.statistics().num_dropped) == (2, 1, 3)
