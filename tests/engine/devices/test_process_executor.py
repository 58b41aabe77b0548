"""Workers in real processes, joined by gloo: exact, and gone when they should be, with a reason where there is one."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.devices.processes import all_end

from headrace.engine.config import EngineArgs
from headrace.engine.core.engine_core import EngineCore
from headrace.engine.executor.choose import make_executor
from headrace.engine.executor.protocol import Executor
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.messages import TokenDelta
from headrace.errors import EngineError, SettingsError, UnsupportedError
from headrace.testing.core_driver import CoreDriver, add_request

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),  # workers import torch
    pytest.mark.skipif(sys.platform != "linux", reason="waits for processes by pidfd"),
]

PROMPTS = {"short": [5, 9, 3], "one token": [42], "long": [(7 * i * i + 11 * i) % 160 for i in range(90)]}


def executor_for(directory: Path, **args: Any) -> Executor:
    given = {"cpu_threads": 1, "device": "cpu", "executor_backend": "process", **args}
    return make_executor(EngineArgs(model=str(directory), **given).create_engine_config())


def core_over(executor: Executor, directory: Path, **args: Any) -> EngineCore:
    given = {"cpu_threads": 1, "device": "cpu", **args}
    return EngineCore(EngineArgs(model=str(directory), **given).create_engine_config(), executor)


def pids_of(executor: Executor) -> list[Any]:
    """By rank."""
    return executor.collective_rpc(lambda _: os.getpid())


@pytest.fixture(scope="module")
def pair(llama: Any) -> Iterator[Executor]:
    """Two workers that share the small Llama, not started."""
    executor = executor_for(llama.directory, tensor_parallel_size=2)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def core(pair: Executor, llama: Any) -> EngineCore:
    """One core for all tests of this module that do no harm; a cache that is too small for all of them at once."""
    return core_over(pair, llama.directory, max_num_batched_tokens=48, max_num_seqs=32)


@pytest.fixture
def close_later() -> Iterator[Callable[[Executor], Executor]]:
    with ExitStack() as cleanup:

        def register(executor: Executor) -> Executor:
            cleanup.callback(executor.close)
            return executor

        yield register


@pytest.fixture
def start(tiny_model_dir: Path, close_later: Callable[[Executor], Executor]) -> Callable[..., Executor]:
    """Starts an executor of the tiny model, which the test may ruin."""

    def make(**args: Any) -> Executor:
        executor = close_later(executor_for(tiny_model_dir, **args))
        executor.start()
        return executor

    return make


def test_two_processes_give_the_tokens_of_one_worker(core: EngineCore, llama: Any) -> None:
    """With chunked prefill, in a batch and again from the cached prefix."""
    driver = CoreDriver(core)
    for round_name in ("cold", "cached"):
        for name, prompt in PROMPTS.items():
            driver.add(add_request(f"{round_name} {name}", prompt))
        driver.run()
    for name, prompt in PROMPTS.items():
        assert driver.tokens[f"cold {name}"] == driver.tokens[f"cached {name}"] == llama.greedy(prompt)
    assert core.statistics().prefix_cache_hits > 0


def test_seeded_draws_are_those_of_one_worker(
    core: EngineCore, llama: Any, make_driver: Callable[..., CoreDriver]
) -> None:
    drivers = {"alone": make_driver(llama.directory), "shared": CoreDriver(core)}
    params = SamplingParams(temperature=1.0, top_k=20, seed=5, max_tokens=None)
    for driver in drivers.values():
        for name, prompt in PROMPTS.items():
            driver.add(add_request(f"seeded {name}", prompt, params=params))
    assert drivers["alone"].run() == drivers["shared"].run()


def test_everything_that_a_request_can_ask_crosses_to_the_workers(
    core: EngineCore, llama: Any, make_driver: Callable[..., CoreDriver]
) -> None:
    asked = {
        "logprobs": {"params": SamplingParams(temperature=0, logprobs=3, prompt_logprobs=2, max_tokens=None)},
        "rules": {"params": SamplingParams(temperature=0, logit_bias={7: 50.0}, min_tokens=3, max_tokens=None)},
        "penalties": {"params": SamplingParams(temperature=0, repetition_penalty=1.5, max_tokens=None)},
        "pooled": {"pooling_params": PoolingParams(pooling_type="last")},
    }
    drivers = {"alone": make_driver(llama.directory), "shared": CoreDriver(core)}
    deltas: dict[str, list[TokenDelta]] = {}
    for name, driver in drivers.items():
        for request_id, options in asked.items():
            driver.add(add_request(request_id, PROMPTS["short"], max_tokens=5, **options))
        deltas[name] = []
        while driver.core.has_work():
            deltas[name] += driver.step()
    assert drivers["alone"].tokens == drivers["shared"].tokens
    for request_id, how_many in (("logprobs", 5), ("rules", 0)):
        ranks = [
            [told.token_ids for delta in deltas[name] if delta.request_id == request_id for told in delta.logprobs]
            for name in drivers
        ]
        assert ranks[0] == ranks[1]
        assert len(ranks[0]) == how_many
    pooled = [drivers[name].ends["pooled"].embedding for name in drivers]
    assert pooled[0] is not None
    assert pooled[1] is not None
    np.testing.assert_allclose(np.frombuffer(pooled[0], "f4"), np.frombuffer(pooled[1], "f4"), atol=1e-5)


def test_a_sum_has_the_same_bits_on_every_worker(core: EngineCore, pair: Executor) -> None:
    def add_up(worker: Any) -> bytes:
        import torch

        group = worker._parallel
        partial = torch.randn(7, 48, generator=torch.Generator().manual_seed(group.rank))
        total: bytes = group.add_up(partial).numpy().tobytes()
        return total

    first, second = pair.collective_rpc(add_up)
    assert first == second


def test_a_call_reaches_every_worker_and_its_error_is_only_the_callers(core: EngineCore, pair: Executor) -> None:
    def rank(worker: Any, offset: int) -> int:
        return int(worker._parallel.rank) + offset

    assert pair.collective_rpc(rank, args=(10,)) == [10, 11]
    with pytest.raises(UnsupportedError, match="no method 'dance'"):
        pair.collective_rpc("dance")
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        pair.collective_rpc(lambda _: 1 // 0)
    assert len(set(pids_of(pair))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama-biased", "mistral-window", "qwen2", "qwen3"])
def test_every_family_is_shared_by_processes(family: str, make_reference: Callable[[str], Any]) -> None:
    reference = make_reference(family)
    executor = executor_for(reference.directory, tensor_parallel_size=2)
    try:
        driver = CoreDriver(core_over(executor, reference.directory))
        for name, prompt in PROMPTS.items():
            driver.add(add_request(name, prompt))
        assert driver.run() == {name: reference.greedy(prompt) for name, prompt in PROMPTS.items()}
    finally:
        executor.close()


@pytest.mark.slow
def test_a_killed_worker_is_named_and_takes_the_others_with_it(
    start: Callable[..., Executor], tiny_model_dir: Path
) -> None:
    executor = start(tensor_parallel_size=2)
    pids = pids_of(executor)
    with all_end(pids):
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(EngineError, match=r"worker 1 of 2 \(pid \d+\) was killed by SIGKILL"):
            pids_of(executor)
        executor.close()


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_of_a_step_is_the_cause_that_is_told(
    llama: Any, close_later: Callable[[Executor], Executor]
) -> None:
    def die_in_the_next_step(worker: Any) -> None:
        worker.follow = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

    executor = close_later(executor_for(llama.directory, tensor_parallel_size=2))
    driver = CoreDriver(core_over(executor, llama.directory))
    with all_end(pids_of(executor)):
        executor.collective_rpc(die_in_the_next_step)
        driver.add(add_request("r", [1, 2, 3]))
        with pytest.raises(EngineError, match=r"worker 1 of 2 \(pid \d+\) was killed by SIGKILL"):
            driver.run()
        executor.close()


@pytest.mark.slow
def test_a_worker_that_stands_still_is_a_hang_and_is_killed(start: Callable[..., Executor]) -> None:
    executor = start(tensor_parallel_size=2, worker_timeout_s=0.5)
    pids = pids_of(executor)
    with all_end(pids):
        os.kill(pids[0], signal.SIGSTOP)
        from headrace.engine.core.step_plan import StepPlan

        with pytest.raises(EngineError, match=r"hang: they did not finish a step within 0\.5 s"):
            executor.execute(StepPlan(released=(), admitted=(), scheduled=()))
        executor.close()


def test_a_step_that_fails_brings_the_workers_traceback(
    llama: Any, close_later: Callable[[Executor], Executor]
) -> None:
    def spoil(worker: Any) -> None:
        worker.runner._model = None

    executor = close_later(executor_for(llama.directory))
    driver = CoreDriver(core_over(executor, llama.directory))
    with all_end(pids_of(executor)):
        executor.collective_rpc(spoil)
        driver.add(add_request("r", [1, 2, 3]))
        with pytest.raises(EngineError, match="worker 0 of 1 failed: AttributeError: 'NoneType'") as caught:
            driver.run()
        executor.close()
    assert "model_runner.py" in str(caught.value.__cause__)


def test_weights_that_are_missing_are_a_settings_error(llama: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((llama.directory / "config.json").read_bytes())
    executor = executor_for(tmp_path)
    with pytest.raises(SettingsError, match=r"no \*\.safetensors in"):
        executor.start()
    executor.close()


def test_an_executor_that_never_started_closes(tiny_model_dir: Path) -> None:
    executor_for(tiny_model_dir).close()


PARENT = """
import sys
from headrace.engine.config import EngineArgs
from headrace.engine.executor.choose import make_executor

def pid_of(_):
    import os  # pickled by value, since it is of __main__
    return os.getpid()

args = EngineArgs(model=sys.argv[1], tensor_parallel_size=2, cpu_threads=1, device="cpu")
executor = make_executor(args.create_engine_config())
executor.start()
print(*executor.collective_rpc(pid_of), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_workers_do_not_outlive_a_killed_core(stopped: bool, tiny_model_dir: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tiny_model_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        with all_end(pids):
            if stopped:
                os.kill(pids[1], signal.SIGSTOP)
            parent.kill()
