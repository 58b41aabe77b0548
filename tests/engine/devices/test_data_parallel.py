"""Several cores as one: where a request goes, what their answers come to, and that they live and die together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from headrace.engine.client.core_connection import OnDeath, OnStep
from headrace.engine.client.data_parallel import DataParallelClient, sum_statistics
from headrace.engine.config import EngineConfig
from headrace.engine.wire.messages import AddRequest, CoreStatistics, Ready, TokenDelta
from headrace.errors import EngineDeadError, EngineStalledError, InvalidRequestError
from headrace.testing.core_driver import add_request
from headrace.testing.fake_core import fake_engine_config


class FakeConnection:
    """A `CoreConnection` that notes what it is told, and says what the test wants."""

    def __init__(self, on_step: OnStep, on_death: OnDeath) -> None:
        self.on_step = on_step
        self.on_death = on_death
        self.statistics = CoreStatistics()
        self.config: EngineConfig | None = None
        self.added: list[str] = []
        self.aborts: list[tuple[str, ...]] = []
        self.closed_with: list[float] = []
        self.answers: dict[str, object] = {}
        self.add_error: BaseException | None = None
        self.is_stalled = False

    async def start(self, config: bytes) -> None:
        self.config = msgspec.json.decode(config, type=EngineConfig)

    async def wait_ready(self, *, timeout_s: float) -> Ready:
        return Ready(num_blocks=10, block_size=16, load_s=1.0, kv_events_endpoint="tcp://x")

    async def add(self, request: AddRequest) -> None:
        if self.add_error is not None:
            raise self.add_error
        self.added.append(request.request_id)

    def post_abort(self, core_ids: Sequence[str]) -> None:
        self.aborts.append(tuple(core_ids))

    async def abort(self, core_ids: Sequence[str]) -> None:
        self.finish(*core_ids, reason="abort")

    async def call(self, method: str, *arguments: object, timeout_s: float | None = None) -> object:
        answer = self.answers.get(method)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def collective_rpc(
        self,
        method: str | Callable[..., object],
        *,
        timeout_s: float | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> list[object]:
        return [method, *args]

    def check_progress(self) -> None:
        if self.is_stalled:
            raise EngineStalledError("no step for long")

    async def aclose(self, *, timeout_s: float) -> None:
        self.closed_with.append(timeout_s)

    def finish(self, *core_ids: str, reason: str = "stop") -> None:
        self.on_step([TokenDelta(request_id=name, new_token_ids=(), finish_reason=reason) for name in core_ids])


class Cores:
    """A client over fake connections, and what it reports."""

    def __init__(self, num_cores: int) -> None:
        self.made: list[FakeConnection] = []
        self.deltas: list[TokenDelta] = []
        self.deaths: list[EngineDeadError] = []
        self.client = DataParallelClient(
            [self._make] * num_cores, on_step=self.deltas.extend, on_death=self.deaths.append
        )

    def _make(self, on_step: OnStep, on_death: OnDeath) -> Any:
        self.made.append(FakeConnection(on_step, on_death))
        return self.made[-1]

    def __getitem__(self, rank: int) -> FakeConnection:
        return self.made[rank]

    async def add(self, name: str, prompt: Sequence[int] = (1, 2, 3)) -> int:
        """The core that got it."""
        await self.client.add(add_request(name, prompt))
        return next(rank for rank, core in enumerate(self.made) if name in core.added)


@pytest.fixture
async def cores() -> AsyncIterator[Cores]:
    cores = Cores(2)
    yield cores
    await cores.client.aclose(timeout_s=0.0)


async def test_each_core_is_told_its_rank(cores: Cores) -> None:
    await cores.client.start(msgspec.json.encode(fake_engine_config()))
    ranks = [core.config.parallel.data_parallel_rank for core in cores.made if core.config is not None]
    assert ranks == [0, 1]


async def test_ready_tells_of_all_blocks_together(cores: Cores) -> None:
    ready = await cores.client.wait_ready(timeout_s=1.0)
    assert (ready.num_blocks, ready.block_size, ready.kv_events_endpoint) == (20, 16, "tcp://x,tcp://x")


async def test_requests_spread_evenly(cores: Cores) -> None:
    for number in range(10):
        await cores.add(str(number))
    assert [len(core.added) for core in cores.made] == [5, 5]


async def test_a_waiting_request_weighs_four_running_ones(cores: Cores) -> None:
    ranks = {name: await cores.add(name) for name in ("a", "b", "c", "d")}
    busy = ranks["a"]
    cores[busy].statistics = CoreStatistics(num_running=2)
    idler = next(name for name, rank in ranks.items() if rank != busy)
    cores[1 - busy].finish(idler)
    assert await cores.add("new") == busy  # two that run weigh less than the one that waits elsewhere


async def test_an_ended_request_weighs_nothing(cores: Cores) -> None:
    first = await cores.add("a")
    await cores.add("b")
    cores[first].finish("a")
    assert await cores.add("c") == first


async def test_equal_prompts_go_to_the_same_idle_core(cores: Cores) -> None:
    seen = set()
    for number in range(5):
        core = await cores.add(f"same {number}", prompt=(9, 9, 9))
        cores[core].finish(f"same {number}")
        seen.add(core)
    assert len(seen) == 1


async def test_other_prompts_use_both_idle_cores(cores: Cores) -> None:
    seen = set()
    for number in range(20):
        core = await cores.add(str(number), prompt=(number, 5))
        cores[core].finish(str(number))
        seen.add(core)
    assert seen == {0, 1}


@pytest.mark.parametrize("error", [EngineDeadError("gone"), asyncio.CancelledError()])
async def test_a_request_that_was_not_sent_weighs_nothing(cores: Cores, error: BaseException) -> None:
    for core in cores.made:
        core.add_error = error
    with pytest.raises(type(error)):
        await cores.add("lost")
    assert repr(cores.client) == "<DataParallelClient 2 cores, 0 requests>"


async def test_an_abort_goes_only_where_the_request_is(cores: Cores) -> None:
    rank_of = {name: await cores.add(name) for name in ("a", "b", "c")}
    cores[rank_of["c"]].finish("c")
    await cores.client.abort(["a", "b", "c", "unknown"])
    for rank, core in enumerate(cores.made):
        assert core.aborts == [tuple(name for name in ("a", "b") if rank_of[name] == rank)]
    assert {delta.request_id for delta in cores.deltas if delta.finish_reason == "abort"} == {"a", "b"}


async def test_an_abort_without_waiting_is_sent_too(cores: Cores) -> None:
    rank = await cores.add("a")
    cores.client.post_abort(["a"])
    assert cores[rank].aborts == [("a",)]


async def test_outputs_pass_through(cores: Cores) -> None:
    delta = TokenDelta(request_id="a", new_token_ids=(5,))
    cores[1].on_step([delta])
    assert cores.deltas == [delta]


@pytest.mark.parametrize(
    ("method", "answers", "together"),
    [
        ("reset_prefix_cache", (True, False), False),
        ("is_sleeping", (True, True), True),
        ("add_lora", (False, True), True),
        ("pin_lora", (True, False), False),
        ("list_loras", ([1, 3], [2, 3]), [1, 2, 3]),
        ("stop_profile", (["a"], ["b"]), ["a", "b"]),
        ("check_integrity", (None, None), None),
    ],
)
async def test_answers_of_all_cores_become_one(
    cores: Cores, method: str, answers: tuple[object, object], together: object
) -> None:
    for core, answer in zip(cores.made, answers, strict=True):
        core.answers[method] = answer
    assert await cores.client.call(method) == together


async def test_no_core_forgets_its_prefixes_while_another_has_a_request(cores: Cores) -> None:
    rank = await cores.add("a")
    cores[0].answers["reset_prefix_cache"] = AssertionError("this core was asked")
    cores[1].answers["reset_prefix_cache"] = AssertionError("this core was asked")
    assert await cores.client.call("reset_prefix_cache") is False
    cores[rank].finish("a")
    cores[0].answers["reset_prefix_cache"] = cores[1].answers["reset_prefix_cache"] = True
    assert await cores.client.call("reset_prefix_cache") is True


async def test_an_error_of_one_core_is_raised_when_all_have_answered(cores: Cores) -> None:
    cores[0].answers["add_lora"] = InvalidRequestError("no such directory")
    cores[1].answers["add_lora"] = True
    with pytest.raises(InvalidRequestError, match="no such directory"):
        await cores.client.call("add_lora")


async def test_worker_calls_answer_by_core(cores: Cores) -> None:
    assert await cores.client.collective_rpc("ping", args=(1,)) == ["ping", 1, "ping", 1]


async def test_one_stalled_core_is_bad_health(cores: Cores) -> None:
    cores.client.check_progress()
    cores[1].is_stalled = True
    with pytest.raises(EngineStalledError):
        cores.client.check_progress()


async def test_the_first_death_is_told_once_and_ends_the_others(cores: Cores) -> None:
    first, second = EngineDeadError("core 0 was killed"), EngineDeadError("core 1 followed")
    cores[0].on_death(first)
    cores[1].on_death(second)
    await asyncio.sleep(0)
    await cores.client.aclose(timeout_s=3.0)
    assert cores.deaths == [first]
    assert cores[1].closed_with == [0.0, 3.0]


def test_statistics_are_sums() -> None:
    total = sum_statistics(
        [CoreStatistics(num_running=2, num_blocks=7, sleep_level=1), CoreStatistics(num_running=3, num_blocks=7)]
    )
    assert (total.num_running, total.num_blocks, total.sleep_level) == (5, 14, 0)
