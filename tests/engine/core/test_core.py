"""Whatever happens around a request, it gets the tokens that it gets alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.engine.config import EngineArgs
from headrace.engine.core.engine_core import EngineCore
from headrace.engine.core.step_plan import StepPlan, StepResult
from headrace.engine.model_config import load_model_config
from headrace.engine.sampling_params import SamplingParams
from headrace.prefix_hash import external_hash
from headrace.testing.core_driver import CoreDriver, add_request

MakeDriver = Callable[..., CoreDriver]

PROMPTS = [[(index * 37 + step * step * 5 + 3) % 160 for step in range(1 + 11 * index)] for index in range(8)]
NUM_TOKENS = 16


def kv_bytes(directory: Path, *, num_blocks: int, block_size: int) -> int:
    """`kv_cache_memory_bytes` for that many blocks in float32."""
    return load_model_config(str(directory)).kv_values_per_token * 4 * block_size * num_blocks


def expected(llama: Any, prompts: list[list[int]] = PROMPTS) -> dict[str, list[int]]:
    return {str(index): llama.greedy(prompt, num_tokens=NUM_TOKENS) for index, prompt in enumerate(prompts)}


def add_all(driver: CoreDriver, prompts: list[list[int]] = PROMPTS) -> None:
    for index, prompt in enumerate(prompts):
        driver.add(add_request(str(index), prompt, max_tokens=NUM_TOKENS))


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 9, "max_num_seqs": 8},
        {"block_size": 1},
        {"block_size": 7},
        {"enable_prefix_caching": False},
        {"scheduling_policy": "priority"},
    ],
    ids=str,
)
def test_a_batch_gives_the_tokens_of_each_alone(args: dict[str, Any], llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, **args)
    add_all(driver)
    assert driver.run() == expected(llama)


def test_requests_that_arrive_at_any_time_get_the_tokens_of_each_alone(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, max_num_batched_tokens=20, max_num_seqs=8)
    for index, prompt in enumerate(PROMPTS):
        driver.add(add_request(str(index), prompt, max_tokens=NUM_TOKENS))
        for _ in range(index):
            driver.step()
    assert driver.run() == expected(llama)


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_preempted_requests_get_the_tokens_of_each_alone(
    enable_prefix_caching: bool, llama: Any, make_driver: MakeDriver
) -> None:
    driver = make_driver(
        llama.directory,
        block_size=4,
        max_model_len=100,
        kv_cache_memory_bytes=kv_bytes(llama.directory, num_blocks=25, block_size=4),
        enable_prefix_caching=enable_prefix_caching,
    )
    prompts = [prompt[:9] for prompt in PROMPTS if len(prompt) >= 9]
    add_all(driver, prompts)
    assert driver.run() == expected(llama, prompts)
    assert driver.core.statistics().num_preemptions > 0


def test_a_cached_prefix_gives_the_same_tokens_and_is_counted(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, block_size=8)
    prompt = PROMPTS[5]
    driver.add(add_request("cold", prompt, max_tokens=NUM_TOKENS))
    driver.run()
    driver.add(add_request("warm", prompt, max_tokens=NUM_TOKENS))
    other = [*prompt[:40], 9, 9, 9]
    driver.add(add_request("branch", other, max_tokens=NUM_TOKENS))
    tokens = driver.run()
    assert tokens["warm"] == tokens["cold"] == llama.greedy(prompt, num_tokens=NUM_TOKENS)
    assert tokens["branch"] == llama.greedy(other, num_tokens=NUM_TOKENS)
    cached = {name: end.num_cached_tokens for name, end in driver.ends.items()}
    assert cached == {"cold": 0, "warm": (len(prompt) - 1) // 8 * 8, "branch": 40}


def test_an_answer_is_a_prefix_of_the_next_turn(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, block_size=4)
    driver.add(add_request("turn 1", PROMPTS[2], max_tokens=NUM_TOKENS))
    answer = driver.run()["turn 1"]
    turn = [*PROMPTS[2], *answer, 5, 6]
    driver.add(add_request("turn 2", turn, max_tokens=NUM_TOKENS))
    assert driver.run()["turn 2"] == llama.greedy(turn, num_tokens=NUM_TOKENS)
    assert driver.ends["turn 2"].num_cached_tokens == (len(turn) - 3) // 4 * 4


def test_after_a_reset_nothing_is_cached(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, block_size=4)
    driver.add(add_request("a", PROMPTS[3]))
    driver.step()
    assert driver.core.reset_prefix_cache() is False
    driver.run()
    assert driver.core.reset_prefix_cache() is True
    driver.add(add_request("b", PROMPTS[3]))
    driver.run()
    assert driver.ends["b"].num_cached_tokens == 0


@pytest.fixture(scope="module")
def small_core(llama: Any) -> EngineCore:
    """Little memory and a small budget, so that arrivals are chunked, hit and preempted; shared by many examples."""
    memory = kv_bytes(llama.directory, num_blocks=16, block_size=4)
    args = EngineArgs(
        model=str(llama.directory),
        block_size=4,
        max_model_len=60,
        max_num_batched_tokens=12,
        max_num_seqs=4,
        kv_cache_memory_bytes=memory,
        cpu_threads=1,
        device="cpu",
    )
    return EngineCore(args.create_engine_config())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.booleans()), min_size=1, max_size=8),
)
def test_any_mix_of_arrivals_and_aborts_gives_the_tokens_of_each_alone(
    arrivals: list[tuple[int, int, bool]], llama: Any, small_core: EngineCore
) -> None:
    """Each arrival: which prompt, how many steps later, and whether it is aborted three steps on."""
    driver = CoreDriver(small_core)
    prompts = {}
    for number, (which, num_steps, is_aborted) in enumerate(arrivals):
        prompts[str(number)] = prompt = PROMPTS[which][:30]
        driver.add(add_request(str(number), prompt, max_tokens=NUM_TOKENS))
        for _ in range(num_steps):
            driver.step()
        if is_aborted and num_steps > 2:
            driver.abort(str(number))
    for number, tokens in driver.run().items():
        whole = llama.greedy(prompts[number], num_tokens=NUM_TOKENS)
        assert tokens == whole[: len(tokens)]
        assert len(tokens) == NUM_TOKENS or driver.ends[number].finish_reason == "abort"
    statistics = small_core.statistics()
    assert statistics.num_free_blocks == statistics.num_blocks
    assert (statistics.num_running, statistics.num_waiting) == (0, 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_starts_nearly_all_answers_alike(dtype: str, llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, dtype=dtype)
    add_all(driver)
    tokens = driver.run()
    num_alike = sum(tokens[name][0] == answer[0] for name, answer in expected(llama).items())
    assert num_alike >= len(PROMPTS) - 1


SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, seed=11, max_tokens=None)


def test_a_seeded_request_draws_the_same_tokens_alone_and_in_any_batch(llama: Any, make_driver: MakeDriver) -> None:
    alone = make_driver(llama.directory)
    alone.add(add_request("seeded", PROMPTS[4], params=SAMPLED))
    crowded = make_driver(llama.directory, seed=99, max_num_batched_tokens=16, max_num_seqs=8)
    for index, prompt in enumerate(PROMPTS):
        params = SamplingParams(temperature=0.7, top_k=index, max_tokens=None)
        crowded.add(add_request(str(index), prompt, params=params))
    crowded.add(add_request("seeded", PROMPTS[4], params=SAMPLED))
    assert alone.run()["seeded"] == crowded.run()["seeded"]


def test_a_preempted_seeded_request_draws_the_same_tokens(llama: Any, make_driver: MakeDriver) -> None:
    memory = kv_bytes(llama.directory, num_blocks=10, block_size=4)
    answers = []
    for args in ({}, {"block_size": 4, "max_model_len": 40, "kv_cache_memory_bytes": memory}):
        driver = make_driver(llama.directory, **args)
        for index in range(3):
            driver.add(add_request(str(index), PROMPTS[1][:9], params=SAMPLED))
        answers.append(driver.run())
    assert driver.core.statistics().num_preemptions > 0
    assert answers[0] == answers[1]


def test_requests_without_a_seed_follow_the_engines(llama: Any, make_driver: MakeDriver) -> None:
    answers = []
    for seed in (1, 1, 2):
        driver = make_driver(llama.directory, seed=seed)
        for name in "ab":
            driver.add(add_request(name, PROMPTS[1], params=SamplingParams(temperature=1.5, max_tokens=None)))
        answers.append(driver.run())
    assert answers[0] == answers[1] != answers[2]
    assert answers[0]["a"] != answers[0]["b"]


def test_min_tokens_keeps_the_end_of_sequence_out(llama: Any, make_driver: MakeDriver) -> None:
    prompt = PROMPTS[2]
    greedy = llama.greedy(prompt, num_tokens=NUM_TOKENS)
    stop = (greedy[1],)
    driver = make_driver(llama.directory)
    driver.add(add_request("stops", prompt, stop_token_ids=stop))
    params = SamplingParams(temperature=0.0, min_tokens=6, max_tokens=None)
    driver.add(add_request("goes on", prompt, params=params, stop_token_ids=stop))
    tokens = driver.run()
    assert tokens["stops"] == greedy[:2]
    assert (driver.ends["stops"].finish_reason, driver.ends["stops"].stop_reason) == ("stop", greedy[1])
    assert len(tokens["goes on"]) >= 6
    assert stop[0] not in tokens["goes on"][:5]


def test_a_refused_request_ends_with_an_error_and_others_go_on(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, max_model_len=20)
    driver.add(add_request("too long", [1] * 20))
    driver.add(add_request("fits", PROMPTS[1][:8], max_tokens=4))
    assert driver.run()["fits"] == llama.greedy(PROMPTS[1][:8], num_tokens=NUM_TOKENS)[:4]
    assert driver.ends["too long"].finish_reason == "error"
    assert "20 tokens" in str(driver.ends["too long"].error)


def test_statistics_count_tokens_and_steps(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory)
    driver.add(add_request("a", PROMPTS[1], max_tokens=3))
    driver.add(add_request("b", PROMPTS[2], max_tokens=5))
    driver.step()
    assert driver.core.statistics().num_running == 2
    driver.run()
    statistics = driver.core.statistics()
    assert statistics.prompt_tokens == len(PROMPTS[1]) + len(PROMPTS[2])
    assert (statistics.generation_tokens, statistics.num_steps) == (8, 5)


class BrokenExecutor:
    """Loads, then fails."""

    def start(self) -> int:
        return 4

    def execute(self, plan: StepPlan) -> StepResult:
        raise RuntimeError(f"cannot run {plan.num_tokens} tokens")

    def collective_rpc(self, method: object, **_: object) -> list[object]:
        return []

    def close(self) -> None:
        pass


def test_a_failure_of_the_model_leaves_the_step(tiny_model_dir: Path) -> None:
    core = EngineCore(EngineArgs(model=str(tiny_model_dir)).create_engine_config(), BrokenExecutor())
    core.add_request(add_request("a", [1, 2, 3]))
    with pytest.raises(RuntimeError, match="cannot run 3 tokens"):
        core.step()


def test_a_step_without_work_does_nothing(tiny_model_dir: Path) -> None:
    core = EngineCore(EngineArgs(model=str(tiny_model_dir)).create_engine_config(), BrokenExecutor())
    assert not core.has_work()
    assert core.step() == ()
    assert core.statistics().num_steps == 0


@pytest.mark.parametrize(
    ("settings", "first_block"),
    [
        ({}, 3262291359910021016),
        ({"prefix_caching_hash_algo": "sha256_cbor"}, 2233398808101521225),
        ({"prefix_caching_hash_algo": "sha256_cbor", "prefix_caching_hash_seed": "0"}, 12687895063098490012),
    ],
    ids=str,
)
def test_blocks_are_named_as_vllm_names_them(
    settings: dict[str, str], first_block: int, llama: Any, make_driver: MakeDriver
) -> None:
    driver = make_driver(llama.directory, block_size=16, **settings)
    driver.add(add_request("a", list(range(20)), max_tokens=1))
    driver.run()
    assert [external_hash(block_hash) for block_hash in driver.core._cache._block_of] == [first_block]


class ClosingExecutor(BrokenExecutor):
    """Remembers its end; cannot start if told so."""

    def __init__(self, *, can_start: bool = True) -> None:
        self.num_closed = 0
        self._can_start = can_start

    def start(self) -> int:
        if not self._can_start:
            raise RuntimeError("no room")
        return 4

    def close(self) -> None:
        self.num_closed += 1


def test_closing_a_core_closes_its_executor(tiny_model_dir: Path) -> None:
    executor = ClosingExecutor()
    EngineCore(EngineArgs(model=str(tiny_model_dir)).create_engine_config(), executor).close()
    assert executor.num_closed == 1


def test_a_core_that_cannot_start_closes_its_executor(tiny_model_dir: Path) -> None:
    executor = ClosingExecutor(can_start=False)
    with pytest.raises(RuntimeError, match="no room"):
        EngineCore(EngineArgs(model=str(tiny_model_dir)).create_engine_config(), executor)
    assert executor.num_closed == 1


def test_statistics_tell_of_the_last_step_and_of_what_is_cached(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, block_size=4)
    driver.add(add_request("a", PROMPTS[1], max_tokens=2))
    driver.step()
    assert driver.core.statistics().num_step_tokens == len(PROMPTS[1])
    driver.step()
    assert driver.core.statistics().num_step_tokens == 1
    driver.step()
    assert driver.core.statistics().num_step_tokens == 0
    assert driver.core.statistics().num_cached_blocks == len(PROMPTS[1]) // 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_tokens_of_the_cpu(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, device="cuda", dtype="float32")
    add_all(driver)
    assert driver.run() == expected(llama)
