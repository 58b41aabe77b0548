"""Requests run by a manager: their statuses are true at every moment, and what it remembers is bounded."""

import asyncio

import pytest

from headrace.engine import (
    AsyncLLMEngine,
    RequestManager,
    RequestManagerSettings,
    RequestOutputKind,
    RequestStatus,
    SamplingParams,
    StreamingRequest,
)
from headrace.errors import EngineGenerateError, InvalidRequestError, OverloadedError, SettingsError
from headrace.testing.fake_core import FakeCore

PARAMS = SamplingParams(max_tokens=4)


async def until_status(manager: RequestManager, request_id: str, status: RequestStatus) -> None:
    async with asyncio.timeout(10):
        while manager.get_request_status(request_id) is not status:
            await asyncio.sleep(0)


async def test_a_request_goes_from_waiting_over_running_to_completed(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(0)
    async with RequestManager(engine) as manager:
        manager.add_request("r", "abc", PARAMS)
        assert manager.get_request_status("r") is RequestStatus.WAITING
        await engine.check_integrity()  # it is queued in the core now
        assert manager.get_request_status("r") is RequestStatus.WAITING
        core.hang()
        core.allow_steps(None)
        nudge = asyncio.ensure_future(engine.check_integrity())  # an idle core looks up with its next message
        await until_status(manager, "r", RequestStatus.RUNNING)  # the step that computes its first token hangs
        core.release()
        await nudge
        result = await manager.result("r")
        assert manager.get_request_status("r") is RequestStatus.COMPLETED
        assert result.outputs[0].text == "abca"


async def test_what_are_no_sampling_params_are_refused_at_once(engine: AsyncLLMEngine) -> None:
    async with RequestManager(engine) as manager:
        with pytest.raises(InvalidRequestError, match="must be SamplingParams, got None"):
            manager.add_request("r", "abc", None)  # type: ignore[arg-type]
        assert manager.statistics().num_open == 0


async def test_the_status_is_a_string() -> None:
    assert RequestStatus.WAITING == "waiting"
    assert [status.value for status in RequestStatus] == ["waiting", "running", "completed", "cancelled", "failed"]


async def test_an_aborted_request_is_cancelled_at_once_and_keeps_what_it_had(
    engine: AsyncLLMEngine, core: FakeCore
) -> None:
    core.allow_steps(2)
    async with RequestManager(engine) as manager:
        manager.add_request("r", "abc", SamplingParams(max_tokens=100))
        await until_status(manager, "r", RequestStatus.RUNNING)
        async with asyncio.timeout(10):
            while engine.statistics().num_steps < 2:
                await engine.check_integrity()
        assert manager.abort_request("r") is True
        assert manager.get_request_status("r") is RequestStatus.CANCELLED
        result = await manager.result("r")
        assert (result.outputs[0].text, result.outputs[0].finish_reason) == ("ab", "abort")
        assert manager.abort_request("r") is False
        await engine.check_integrity()
        assert engine.statistics().num_free_blocks == engine.statistics().num_blocks


async def test_a_request_aborted_before_the_engine_has_it_never_begins(engine: AsyncLLMEngine, core: FakeCore) -> None:
    async with RequestManager(engine) as manager:
        manager.add_request("r", "abc", PARAMS)
        manager.abort_request("r")
        with pytest.raises(EngineGenerateError, match="aborted before"):
            await manager.result("r")
        assert manager.get_request_status("r") is RequestStatus.CANCELLED
        await engine.check_integrity()
        assert core.added == []


async def test_an_abort_by_the_engine_is_cancelled_too(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(1)
    async with RequestManager(engine) as manager:
        manager.add_request("r", "abc", SamplingParams(max_tokens=100))
        await until_status(manager, "r", RequestStatus.RUNNING)
        await engine.abort("r")
        await manager.result("r")
        assert manager.get_request_status("r") is RequestStatus.CANCELLED


async def test_a_refused_request_has_failed_and_its_result_raises_why(engine: AsyncLLMEngine) -> None:
    async with RequestManager(engine) as manager:
        manager.add_request("r", "", PARAMS)
        for _ in range(2):  # each waiter gets an error of its own
            with pytest.raises(InvalidRequestError, match="empty"):
                await manager.result("r")
        assert manager.get_request_status("r") is RequestStatus.FAILED


async def test_the_result_is_the_whole_answer_whatever_the_output_kind(engine: AsyncLLMEngine) -> None:
    async with RequestManager(engine) as manager:
        manager.add_request("r", "abc", SamplingParams(max_tokens=6, output_kind=RequestOutputKind.DELTA))
        assert (await manager.result("r")).outputs[0].text == "abcabc"


async def test_what_was_asked_for_can_be_read_again(engine: AsyncLLMEngine) -> None:
    async with RequestManager(engine) as manager:
        added = manager.add_request("r", "abc", PARAMS, prompt_token_ids=[97, 98], arrival_time=5.0)
        assert added == StreamingRequest("r", "abc", PARAMS, 5.0) == manager.get_request("r")
        assert (await manager.result("r")).outputs[0].text == "abab"


async def test_an_id_is_refused_while_it_is_known(engine: AsyncLLMEngine) -> None:
    async with RequestManager(engine) as manager:
        manager.add_request("r", "abc", PARAMS)
        with pytest.raises(InvalidRequestError, match="'r'"):
            manager.add_request("r", "abc", PARAMS)
        await manager.result("r")
        with pytest.raises(InvalidRequestError, match="remembered"):
            manager.add_request("r", "abc", PARAMS)


async def test_only_the_newest_ended_requests_are_remembered(engine: AsyncLLMEngine) -> None:
    async with RequestManager(engine, RequestManagerSettings(max_finished=2)) as manager:
        for name in "abc":
            manager.add_request(name, "abc", PARAMS)
            await manager.result(name)
        assert manager.statistics().num_remembered == 2
        with pytest.raises(InvalidRequestError, match="there is no request 'a'"):
            manager.get_request_status("a")
        assert manager.get_request_status("b") is RequestStatus.COMPLETED


async def test_an_ended_request_is_forgotten_in_time(engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with RequestManager(engine, RequestManagerSettings(remember_s=60.0)) as manager:
        manager.add_request("r", "abc", PARAMS)
        await manager.result("r")
        loop = asyncio.get_running_loop()
        later_s = loop.time() + 61.0
        monkeypatch.setattr(loop, "time", lambda: later_s)
        assert manager.statistics().num_remembered == 0
        monkeypatch.undo()


async def test_more_open_requests_than_allowed_are_overload(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(0)
    async with RequestManager(engine, RequestManagerSettings(max_open=1)) as manager:
        manager.add_request("a", "abc", PARAMS)
        with pytest.raises(OverloadedError, match="max_open"):
            manager.add_request("b", "abc", PARAMS)


async def test_closing_ends_what_is_open(engine: AsyncLLMEngine, core: FakeCore) -> None:
    core.allow_steps(0)
    manager = RequestManager(engine)
    manager.add_request("r", "abc", PARAMS)
    await engine.check_integrity()
    await manager.aclose()
    assert manager.get_request_status("r") is RequestStatus.CANCELLED
    assert await engine.get_num_unfinished_requests() == 0


@pytest.mark.parametrize("field", ["max_open", "max_finished", "remember_s"])
def test_a_setting_that_cannot_work_is_refused_by_name(field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RequestManagerSettings(**{field: 0})
    assert caught.value.param == field
