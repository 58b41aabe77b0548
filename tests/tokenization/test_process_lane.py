import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import (
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    SettingsError,
    TokenizationError,
)
from headrace.tokenization import ByteTokenizer, Tokenizer
from headrace.tokenization.huggingface import HuggingFaceTokenizer
from headrace.tokenization.lanes import Finished
from headrace.tokenization.processes.lane import WORKER_COMMAND, ProcessLane, choose
from headrace.tokenization.processes.poison import PoisonMemory, PoisonTextError
from headrace.tokenization.processes.process import TokenizerProcess
from headrace.tokenization.processes.settings import ProcessLaneSettings
from headrace.tokenization.processes.wire import Answer, Encode, FrameSplitter, Ids, Question, encode_frame
from headrace.tokenization.tokenizer import TokenIds
from headrace.tokenization.works import EncodeTexts

HOSTILE = (sys.executable, str(Path(__file__).parent / "hostile_worker.py"))
READY_TIMEOUT_S = 30.0


@asynccontextmanager
async def hostile_lane(
    *, path: str = "fine", is_awaited: bool = True, command: Sequence[str] = HOSTILE, **settings: float
) -> AsyncIterator[ProcessLane]:
    """A lane with one process, unless `settings` say otherwise, that does what texts ask of it; leaves nothing."""
    tokenizer = ByteTokenizer()
    threads = threading.active_count()
    lane = ProcessLane(ProcessLaneSettings(**({"num_processes": 1} | settings)), command=command)  # type: ignore[arg-type]
    lane.register(tokenizer, path)
    try:
        if is_awaited:
            await lane.wait_ready(timeout_s=READY_TIMEOUT_S)
        yield lane
    finally:
        pids = [process.pid for process in lane.statistics().processes if process.pid]
        await lane.aclose(timeout_s=10)
        assert not [pid for pid in pids if is_alive(pid)]
        assert threading.active_count() == threads


def submit(lane: ProcessLane, text: str, *, num_bytes: int | None = None) -> asyncio.Future[Finished[TokenIds]]:
    size = len(text.encode(errors="surrogatepass")) if num_bytes is None else num_bytes
    return lane.submit(EncodeTexts(ByteTokenizer(), add_special_tokens=False), text, num_bytes=size)


async def encode(lane: ProcessLane, text: str) -> bytes:
    return bytes((await submit(lane, text)).value.astype("uint8"))


def pids_of(lane: ProcessLane) -> list[int]:
    return [process.pid for process in lane.statistics().processes if process.pid is not None]


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Decisions and wire: no processes.


class Loaded:
    """Stands for a process under load."""

    def __init__(self, num_running_bytes: int) -> None:
        self.num_running_bytes = num_running_bytes
        self.num_running = 1


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers())
def test_the_most_loaded_of_several_processes_is_never_chosen(loads: list[int], seed: int) -> None:
    processes: list[TokenizerProcess] = [Loaded(load) for load in loads]  # type: ignore[misc]
    chosen = choose(processes, random.Random(seed))
    assert len(set(loads)) == 1 or loads.count(max(loads)) > 1 or chosen.num_running_bytes < max(loads)


def test_a_text_is_poison_after_it_broke_enough_processes() -> None:
    memory = PoisonMemory(max_breaks=2, max_texts=10)
    assert not memory.blame("f", "text")
    assert not memory.is_poison("f", "text")
    assert memory.blame("f", "text")
    assert memory.is_poison("f", "text")
    assert not memory.is_poison("other tokenizer", "text")


def test_a_text_that_was_encoded_after_all_is_forgiven() -> None:
    memory = PoisonMemory(max_breaks=2, max_texts=10)
    memory.blame("f", "text")
    memory.forgive("f", "text")
    assert not memory.blame("f", "text")


@given(st.lists(st.text(max_size=2), max_size=50))
def test_the_memory_of_poison_is_bounded(texts: list[str]) -> None:
    memory = PoisonMemory(max_breaks=2, max_texts=5)
    for text in texts:
        memory.blame("f", text)
    assert len(memory) <= 5


@given(st.binary(max_size=200), st.text(), st.lists(st.integers(1, 50), max_size=20))
def test_frames_come_out_as_they_went_in_however_they_are_cut(ids: bytes, text: str, cuts: list[int]) -> None:
    messages: list[Question | Answer] = [Ids(1, ids, 0.5), Encode(2, 3, text, True)]
    stream = b"".join(map(encode_frame, messages))
    frames = FrameSplitter()
    payloads = []
    for cut in [*cuts, len(stream)]:
        payloads += frames.feed(stream[:cut])
        stream = stream[cut:]
    assert payloads == [encode_frame(message)[4:] for message in messages]


@pytest.mark.parametrize(
    ("name", "value"), [("num_processes", -1), ("permits_per_process", 0), ("job_timeout_s", 0), ("max_text", 1 << 30)]
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(SettingsError, match=name) as failure:
        ProcessLaneSettings(**{name: value})
    assert failure.value.param == name


async def test_a_lane_without_processes_takes_nothing_and_starts_nothing() -> None:
    lane = ProcessLane(ProcessLaneSettings(num_processes=0))
    lane.register(ByteTokenizer(), "nowhere")
    assert not lane.takes(ByteTokenizer(), num_bytes=1)
    assert not lane.has_free_process()
    await lane.wait_ready(timeout_s=1)
    await lane.aclose(timeout_s=1)


# Real processes.


@pytest.mark.integration
async def test_a_process_gives_the_ids_that_a_thread_gives(tmp_path: Path, tiny_tokenizer_json: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tiny_tokenizer_json)
    tokenizer: Tokenizer = HuggingFaceTokenizer(tiny_tokenizer_json, name="tiny")
    lane = ProcessLane(ProcessLaneSettings(num_processes=1), command=WORKER_COMMAND)
    lane.register(tokenizer, path)
    finished = await lane.submit(EncodeTexts(tokenizer, add_special_tokens=True), "one two one", num_bytes=11)
    assert finished.value.tolist() == [0, 1, 0]
    assert finished.value.dtype == "uint32"
    assert not finished.value.flags.writeable
    await lane.aclose(timeout_s=10)


@pytest.mark.integration
async def test_texts_wait_in_order_for_the_one_permit() -> None:
    async with hostile_lane() as lane:
        assert lane.has_free_process()
        futures = [submit(lane, text) for text in ("a", "bé", "")]
        assert (lane.statistics().num_running, len(lane)) == (1, 2)
        assert not lane.has_free_process()
        assert [(await future).value.tolist() for future in futures] == [[97], [98, 195, 169], []]
        assert lane.statistics().num_finished == 3


@pytest.mark.integration
async def test_texts_spread_over_the_processes() -> None:
    async with hostile_lane(num_processes=2) as lane:
        await asyncio.gather(*[encode(lane, str(number)) for number in range(20)])
        assert all(process.num_answered for process in lane.statistics().processes)


@pytest.mark.integration
async def test_what_is_refused_is_refused_at_the_door() -> None:
    async with hostile_lane(max_text=4, max_queued_jobs=1) as lane:
        tokenizer = ByteTokenizer()
        assert lane.takes(tokenizer, num_bytes=4)
        assert not lane.takes(tokenizer, num_bytes=5)
        with pytest.raises(PayloadTooLargeError, match="5 bytes"):
            submit(lane, "12345")
        with pytest.raises(InvalidRequestError, match="lone surrogate"):
            submit(lane, "\ud800")
        unknown = EncodeTexts(ByteTokenizer(chat_template="unknown"), add_special_tokens=False)
        with pytest.raises(TokenizationError, match="register"):
            lane.submit(unknown, "a", num_bytes=1)
        running, waiting = submit(lane, "a"), submit(lane, "b")
        with pytest.raises(OverloadedError, match="1 texts wait in lane 'process'"):
            submit(lane, "c")
        await asyncio.gather(running, waiting)


@pytest.mark.integration
async def test_a_cancelled_text_frees_its_place_and_is_never_encoded() -> None:
    async with hostile_lane(max_queued_jobs=1) as lane:
        running, leaving = submit(lane, "a"), submit(lane, "b")
        leaving.cancel()
        await asyncio.sleep(0)
        staying = submit(lane, "c")
        await asyncio.gather(running, staying)
        assert lane.statistics().num_finished == 2


@pytest.mark.integration
async def test_an_error_of_the_tokenizer_fails_its_text_alone() -> None:
    async with hostile_lane() as lane:
        before = pids_of(lane)
        with pytest.raises(TokenizationError, match="RuntimeError: boom"):
            await submit(lane, "crash")
        assert await encode(lane, "after") == b"after"
        assert pids_of(lane) == before


@pytest.mark.integration
async def test_a_killed_process_is_replaced_and_its_text_is_tried_again(tmp_path: Path) -> None:
    async with hostile_lane(num_processes=2) as lane:
        before = set(pids_of(lane))
        assert (await encode(lane, f"die once:{tmp_path / 'died'}")).startswith(b"die once")
        await lane.wait_ready(timeout_s=READY_TIMEOUT_S)
        statistics = lane.statistics()
        assert (statistics.num_retried, statistics.num_replaced, statistics.num_failed) == (1, 1, 0)
        assert len(before & set(pids_of(lane))) == 1


@pytest.mark.integration
async def test_a_process_that_is_killed_while_idle_is_replaced() -> None:
    async with hostile_lane() as lane:
        (before,) = pids_of(lane)
        os.kill(before, signal.SIGKILL)
        assert await encode(lane, "text") == b"text"
        assert pids_of(lane) != [before]


@pytest.mark.integration
@pytest.mark.parametrize("verb", ["hang", "stop"])
async def test_a_process_that_hangs_is_killed_and_the_text_that_hung_two_is_refused(verb: str) -> None:
    async with hostile_lane(num_processes=2, job_timeout_s=0.2) as lane:
        with pytest.raises(PoisonTextError, match="broke every tokenizer process") as failure:
            await submit(lane, verb)
        assert failure.value.param == "prompt"
        assert lane.statistics().num_replaced == 2
        assert await encode(lane, "after") == b"after"


@pytest.mark.integration
async def test_a_process_that_hung_once_is_forgotten(tmp_path: Path) -> None:
    async with hostile_lane(num_processes=2, job_timeout_s=0.2) as lane:
        text = f"hang once:{tmp_path / 'hung'}"
        assert await encode(lane, text) == text.encode()
        assert lane.statistics().num_poisonous == 0


@pytest.mark.integration
@pytest.mark.parametrize("verb", ["die", "garbage", "huge"])
async def test_a_text_that_broke_two_processes_is_refused_by_name_and_remembered(verb: str) -> None:
    async with hostile_lane() as lane:
        with pytest.raises(PoisonTextError, match=f"{len(verb)} characters"):
            await submit(lane, verb)
        assert lane.is_poison(ByteTokenizer(), verb)
        with pytest.raises(PoisonTextError):
            submit(lane, verb)
        assert lane.statistics().num_replaced == 2
        assert lane.statistics().num_poisonous == 1
        assert await encode(lane, "after") == b"after"


@pytest.mark.integration
async def test_a_text_whose_caller_left_is_still_blamed() -> None:
    async with hostile_lane() as lane:
        for _ in range(2):
            leaving = submit(lane, "die")
            leaving.cancel()
            assert await encode(lane, "after") == b"after"
        assert lane.is_poison(ByteTokenizer(), "die")


@pytest.mark.integration
async def test_only_the_text_that_the_process_was_at_is_blamed() -> None:
    async with hostile_lane(permits_per_process=3) as lane:
        results = await asyncio.gather(*(submit(lane, text) for text in ("die", "b", "c")), return_exceptions=True)
        assert [type(result) for result in results] == [PoisonTextError, Finished, Finished]


@pytest.mark.integration
async def test_a_text_that_finds_no_process_in_time_is_refused() -> None:
    async with hostile_lane(path="slow", is_awaited=False, queue_timeout_s=0.05) as lane:
        with pytest.raises(OverloadedError, match=r"within 0\.05 s"):
            await submit(lane, "text")
        assert len(lane) == 0


@pytest.mark.integration
@pytest.mark.parametrize(("path", "reason"), [("broken", "no such tokenizer"), ("other", "not those of the tokenizer")])
async def test_a_tokenizer_that_a_process_cannot_load_is_not_taken(
    path: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with hostile_lane(path=path, is_awaited=False) as lane:
        with pytest.raises(TokenizationError, match=reason):
            await submit(lane, "text")
        assert not lane.takes(ByteTokenizer(), num_bytes=1)
        with pytest.raises(TokenizationError, match=reason):
            submit(lane, "text")
    assert reason in caplog.text


@pytest.mark.integration
async def test_a_process_that_does_not_get_ready_is_replaced() -> None:
    async with hostile_lane(path="slow", is_awaited=False, start_timeout_s=0.5) as lane:
        while lane.statistics().num_replaced < 2:
            await asyncio.sleep(0.02)


@pytest.mark.integration
async def test_a_command_that_cannot_be_started_is_tried_again_later() -> None:
    async with hostile_lane(command=("/nowhere/python",), is_awaited=False, queue_timeout_s=0.3) as lane:
        with pytest.raises(OverloadedError):
            await submit(lane, "text")
        assert lane.statistics().num_replaced >= 2


@pytest.mark.integration
async def test_closing_fails_whoever_waits_at_once_and_leaves_no_process() -> None:
    async with hostile_lane() as lane:
        futures = [submit(lane, "hang"), submit(lane, "b")]
        await lane.aclose(timeout_s=10)
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(result) for result in results] == [OverloadedError, OverloadedError]
        with pytest.raises(OverloadedError, match="closed"):
            submit(lane, "c")


@pytest.mark.integration
async def test_closing_while_processes_start_leaves_nothing() -> None:
    async with hostile_lane(is_awaited=False, num_processes=2) as lane:
        await asyncio.sleep(0)
        await lane.aclose(timeout_s=10)


@pytest.mark.integration
async def test_replacing_processes_leaks_no_descriptor() -> None:
    async with hostile_lane() as lane:
        before = num_descriptors()
        for number in range(3):
            os.kill(pids_of(lane)[0], signal.SIGKILL)
            assert await encode(lane, f"{number}") == f"{number}".encode()
        assert num_descriptors() == before


@pytest.mark.integration
async def test_a_second_tokenizer_is_loaded_by_processes_that_run(tmp_path: Path, tiny_tokenizer_json: bytes) -> None:
    paths = []
    for name in ("one", "two"):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_bytes(tiny_tokenizer_json.replace(b"one", name.encode() * 2))
    tokenizers = [HuggingFaceTokenizer(path.read_bytes(), name=path.name) for path in paths]
    lane = ProcessLane(ProcessLaneSettings(num_processes=1))
    for tokenizer, path in zip(tokenizers, paths, strict=True):
        lane.register(tokenizer, path)
        lane.register(tokenizer, path)
        finished = await lane.submit(EncodeTexts(tokenizer, add_special_tokens=False), "two", num_bytes=3)
        assert finished.value.size == 1
    assert lane.statistics().num_replaced == 0
    await lane.aclose(timeout_s=10)


PARENT = """
import asyncio, sys
from headrace.tokenization import ByteTokenizer
from headrace.tokenization.processes.lane import ProcessLane, ProcessLaneSettings
from headrace.tokenization.works import EncodeTexts

async def main():
    lane = ProcessLane(ProcessLaneSettings(num_processes=1), command=(sys.executable, sys.argv[1]))
    lane.register(ByteTokenizer(), "fine")
    await lane.wait_ready(timeout_s=30)
    print(lane.statistics().processes[0].pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.integration
def test_a_process_ends_when_the_one_that_started_it_was_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), HOSTILE[1]], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not is_alive(pid))


def wait_until(is_so: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """For what another process does: it has no event to await."""
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.02)):
        if is_so():
            return
        pause.wait(0.02)
    raise AssertionError(f"it was not so within {timeout_s} s")
