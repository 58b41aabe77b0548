"""Workers and cores as actors of a real Ray on this machine."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engine.devices.processes import all_end

from headrace.engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from headrace.errors import EngineDeadError, SettingsError

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'headrace[ray]'")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's
    pytest.mark.skipif(sys.platform != "linux", reason="waits for processes by pidfd"),
]

PROMPTS = [f"The water of mill {number} turns the wheel {'and the stone ' * (number % 5)}" for number in range(8)]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
LONG = SamplingParams(max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a local Ray of two cores, to which this process is connected."""
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False, address="local")
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def engine_of(directory: Path, **args: Any) -> AsyncLLMEngine:
    given = {"kv_cache_memory_bytes": 4_000_000, "cpu_threads": 1, "device": "cpu", "disable_log_requests": True}
    return AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(directory), **{**given, **args}))


async def answers(engine: AsyncLLMEngine) -> list[Sequence[int]]:
    async def answer(prompt: str) -> Sequence[int]:
        outputs = [output async for output in engine.generate(prompt, GREEDY, prompt)]
        return outputs[-1].outputs[0].token_ids

    return await asyncio.gather(*map(answer, PROMPTS))


async def pids_of(engine: AsyncLLMEngine) -> list[Any]:
    return await engine.collective_rpc(lambda _: os.getpid())


def num_reserved() -> int:
    """Placement groups that hold resources."""
    tables = ray.util.placement_group_table().values()
    return sum(table["state"] != "REMOVED" for table in tables)


def num_free_cpus() -> float:
    return float(ray.available_resources().get("CPU", 0.0))


async def cpus_are_free(*, timeout_s: float = 30.0) -> bool:
    """Ray counts a dead actor's cores a moment after its death."""
    async with asyncio.timeout(timeout_s):
        while num_free_cpus() < 2.0:
            await asyncio.sleep(0.1)
    return True


@pytest.fixture(scope="module")
def expected(tiny_model_dir: Path) -> list[Sequence[int]]:
    async def main() -> list[Sequence[int]]:
        async with engine_of(tiny_model_dir) as engine:
            return await answers(engine)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "args",
    [
        {"worker_use_ray": True, "tensor_parallel_size": 2},
        {"engine_use_ray": True},
        {"engine_use_ray": True, "worker_use_ray": True, "tensor_parallel_size": 2},
        {"engine_use_ray": True, "data_parallel_size": 2},
    ],
)
async def test_answers_are_those_of_one_worker(
    args: dict[str, Any], cluster: str, tiny_model_dir: Path, expected: list[Sequence[int]]
) -> None:
    async with engine_of(tiny_model_dir, ray_address=cluster, **args) as engine:
        pids = await pids_of(engine)
        assert os.getpid() not in pids
        assert await answers(engine) == expected
        await engine.check_integrity()
        with all_end([*pids, engine.core_pid], timeout_s=30.0):
            await engine.shutdown_background_loop()
    assert num_reserved() == 0
    assert await cpus_are_free()


async def test_a_killed_worker_actor_is_named(cluster: str, tiny_model_dir: Path) -> None:
    args = {"worker_use_ray": True, "tensor_parallel_size": 2, "ray_address": cluster}
    async with engine_of(tiny_model_dir, **args) as engine:
        pids = await pids_of(engine)
        stream = await engine.add_request("r", PROMPTS[0], LONG)
        await anext(stream)
        with all_end(pids, timeout_s=30.0):
            os.kill(pids[1], signal.SIGKILL)
            with pytest.raises(EngineDeadError, match=r"worker 1 of 2 \(Ray actor, pid \d+\) died: The actor is dead"):
                async for _ in stream:
                    pass
    assert num_reserved() == 0
    assert await cpus_are_free()


async def test_a_killed_core_actor_is_the_cause(cluster: str, tiny_model_dir: Path) -> None:
    async with engine_of(tiny_model_dir, engine_use_ray=True, ray_address=cluster) as engine:
        stream = await engine.add_request("r", PROMPTS[0], LONG)
        await anext(stream)
        assert engine.core_pid is not None
        os.kill(engine.core_pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=r"the engine core \(Ray actor, pid \d+\) died"):
            async for _ in stream:
                pass
    assert await cpus_are_free()


async def test_a_core_actor_that_stands_still_is_killed(cluster: str, tiny_model_dir: Path) -> None:
    engine = engine_of(tiny_model_dir, engine_use_ray=True, ray_address=cluster)
    async with engine:
        assert engine.core_pid is not None
        with all_end([engine.core_pid], timeout_s=30.0):
            os.kill(engine.core_pid, signal.SIGSTOP)
            await engine.shutdown_background_loop()


def test_the_core_in_this_process_is_no_actor(tiny_model_dir: Path) -> None:
    args = AsyncEngineArgs(model=str(tiny_model_dir), engine_use_ray=True)
    with pytest.raises(SettingsError, match="in_process"):
        AsyncLLMEngine.from_engine_args(args, in_process=True)


def test_ray_is_imported_by_one_module_only() -> None:
    sources = Path(__file__).parents[3] / "src" / "headrace"
    texts = {path.name: path.read_text() for path in sources.rglob("*.py")}
    importing = {name for name, text in texts.items() if "import ray\n" in text or "from ray" in text}
    assert importing == {"ray_cluster.py"}


def test_a_closed_starter_leaves_the_connection_of_others_alone(cluster: str) -> None:
    from headrace.engine.executor.ray import RayStarter

    with closing(RayStarter(address=cluster)):
        pass
    assert ray.is_initialized()
