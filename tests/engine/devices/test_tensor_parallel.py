"""Workers that share a model give the tokens of one worker, whatever the family and the schedule."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.engine.lora_request import LoRARequest
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.testing.core_driver import CoreDriver, add_request
from headrace.testing.random_lora import write_random_lora

PROMPTS = {"short": [5, 9, 3], "one token": [42], "long": [(7 * i * i + 11 * i) % 160 for i in range(90)]}
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=11, max_tokens=None)

MakeDriver = Callable[..., CoreDriver]


def run_all(driver: CoreDriver, **request: Any) -> dict[str, list[int]]:
    for name, prompt in PROMPTS.items():
        driver.add(add_request(name, prompt, **request))
    return driver.run()


@pytest.mark.parametrize(
    ("family", "size"),
    [
        ("llama", 2),
        ("llama-biased", 2),
        ("llama-all-kv-heads", 4),  # uneven: six heads for four workers
        ("llama-one-kv-head", 3),  # every worker holds the one key-value head
        ("llama-tied", 2),
        ("mistral-window", 2),
        ("qwen2", 2),
        ("qwen3", 2),
    ],
)
def test_greedy_tokens_equal_transformers(
    family: str, size: int, make_reference: Callable[[str], Any], make_shared: MakeDriver
) -> None:
    reference = make_reference(family)
    driver = make_shared(reference.directory, size=size)
    assert run_all(driver) == {name: reference.greedy(prompt) for name, prompt in PROMPTS.items()}


@pytest.mark.parametrize(
    "args",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 8},  # chunked prefill
        {"enable_prefix_caching": False},
        {"cpu_kernels": "off"},
        {"block_size": 5},
    ],
)
def test_seeded_tokens_equal_those_of_one_worker(
    args: dict[str, Any], llama: Any, make_driver: MakeDriver, make_shared: MakeDriver
) -> None:
    alone = run_all(make_driver(llama.directory, **args), params=SEEDED)
    assert run_all(make_shared(llama.directory, size=2, **args), params=SEEDED) == alone


def test_tokens_survive_preemption(llama: Any, make_shared: MakeDriver) -> None:
    driver = make_shared(llama.directory, size=2, max_model_len=64, kv_cache_memory_bytes=64 * 2 * 2 * 16 * 4 * 2)
    prompts = {f"r{number}": [number + 3] * (8 + number) for number in range(6)}
    for name, prompt in prompts.items():
        driver.add(add_request(name, prompt, max_tokens=30))
    assert driver.run() == {name: llama.greedy(prompt, num_tokens=30) for name, prompt in prompts.items()}
    assert driver.core.statistics().num_preemptions > 0


def test_a_cached_prefix_gives_the_same_tokens_again(llama: Any, make_shared: MakeDriver) -> None:
    driver = make_shared(llama.directory, size=2)
    for name in ("first", "again"):
        driver.add(add_request(name, PROMPTS["long"]))
        driver.run()
    assert driver.tokens["first"] == driver.tokens["again"] == llama.greedy(PROMPTS["long"])
    assert driver.core.statistics().prefix_cache_hits > 0


def test_abort_in_the_middle_leaves_the_others_right(llama: Any, make_shared: MakeDriver) -> None:
    driver = make_shared(llama.directory, size=2)
    for name, prompt in PROMPTS.items():
        driver.add(add_request(name, prompt))
    for _ in range(4):
        driver.step()
    driver.abort("short")
    assert driver.run()["long"] == llama.greedy(PROMPTS["long"])


@pytest.mark.parametrize("kernels", ["auto", "off"])
def test_adapters_are_cut_as_the_layers_are(
    kernels: str, llama: Any, tmp_path: Path, make_driver: MakeDriver, make_shared: MakeDriver
) -> None:
    """A base request and one with an adapter in one batch; the adapter changes every layer."""
    lora = LoRARequest("wide", 1, str(write_random_lora(tmp_path, model=llama.directory, scale=0.3)))
    drivers = [
        make_driver(llama.directory, enable_lora=True, cpu_kernels=kernels),
        make_shared(llama.directory, size=2, enable_lora=True, cpu_kernels=kernels),
    ]
    for driver in drivers:
        driver.add(add_request("base", PROMPTS["long"]))
        driver.add(add_request("adapted", PROMPTS["long"], lora=lora))
    alone, shared = (driver.run() for driver in drivers)
    assert shared == alone
    assert alone["base"] == llama.greedy(PROMPTS["long"]) != alone["adapted"]


def test_an_adapter_that_no_worker_can_load_fails_its_request_alone(llama: Any, make_shared: MakeDriver) -> None:
    driver = make_shared(llama.directory, size=2, enable_lora=True)
    driver.add(add_request("bad", [1, 2, 3], lora=LoRARequest("gone", 1, "/nowhere")))
    driver.add(add_request("good", PROMPTS["short"]))
    assert driver.run()["good"] == llama.greedy(PROMPTS["short"])
    assert driver.ends["bad"].finish_reason == "error"


def test_an_embedding_is_that_of_one_worker(llama: Any, make_driver: MakeDriver, make_shared: MakeDriver) -> None:
    vectors = []
    for driver in (make_driver(llama.directory), make_shared(llama.directory, size=2)):
        driver.add(add_request("r", PROMPTS["long"], pooling_params=PoolingParams(pooling_type="mean")))
        driver.add(add_request("other", PROMPTS["short"]))
        driver.run()
        packed = driver.ends["r"].embedding
        assert packed is not None
        vectors.append(np.frombuffer(packed, dtype=np.float32))
    np.testing.assert_allclose(vectors[1], vectors[0], atol=1e-5)


def test_int8_weights_are_shared_too(llama: Any, make_driver: MakeDriver, make_shared: MakeDriver) -> None:
    """Each worker rounds its own part of the inputs: the answers are near those of one worker, not the same."""
    alone = run_all(make_driver(llama.directory, quantization="int8"), max_tokens=4)
    shared = run_all(make_shared(llama.directory, size=2, quantization="int8"), max_tokens=4)
    assert sum(alone[name][0] == shared[name][0] for name in PROMPTS) >= 2


def test_each_worker_holds_its_part_of_weights_and_cache(llama: Any, make_shared: MakeDriver) -> None:
    """Half of the projections, and half the key-value heads: so twice the blocks of one worker in the same memory."""

    def shapes(worker: Any) -> tuple[list[int], int]:
        layer = worker._model._layers[0]
        return list(layer._attention.qkv.product._weight.shape), worker._cache.num_kv_heads

    driver = make_shared(llama.directory, size=2, cpu_kernels="off")
    executor: Any = driver.core._executor
    assert executor.collective_rpc(shapes) == [([(3 + 1 + 1) * 16, 48], 1)] * 2


def test_workers_agree_on_the_least_number_of_blocks(llama: Any, make_shared: MakeDriver) -> None:
    memory = 300_000
    uneven = make_shared(llama.directory, size=2, kv_cache_memory_bytes=memory)
    assert uneven.core.num_blocks == memory // (2 * 2 * 1 * 16 * 4 * 16)


def test_random_weights_are_parts_of_one_model(llama: Any, make_driver: MakeDriver, make_shared: MakeDriver) -> None:
    args = {"load_format": "dummy", "seed": 3}
    alone = run_all(make_driver(llama.directory, **args))
    assert run_all(make_shared(llama.directory, size=2, **args)) == alone


def test_sleeping_workers_wake_up_with_their_own_parts(llama: Any, make_shared: MakeDriver) -> None:
    driver = make_shared(llama.directory, size=2)
    driver.core.operations.sleep(1)
    driver.core.operations.wake_up(None)
    assert run_all(driver) == {name: llama.greedy(prompt) for name, prompt in PROMPTS.items()}


def test_a_part_of_a_tensor_is_read_as_the_whole_tensor_has_it(tiny_model_dir: Path) -> None:
    from headrace.engine.models.weights import SafetensorsWeights, TensorPart

    def weights() -> SafetensorsWeights:
        return SafetensorsWeights(tiny_model_dir, device=torch.device("cpu"), dtype=torch.float32)

    name = "model.layers.0.mlp.down_proj.weight"
    whole = weights().take(name, 64, 128)
    columns = weights().take(name, 64, 128, part=TensorPart(dim=1, span=range(32, 96)))
    rows = weights().take(name, 64, 128, part=TensorPart(dim=0, span=range(16, 20)))
    assert torch.equal(columns, whole[:, 32:96])
    assert columns.is_contiguous()
    assert torch.equal(rows, whole[16:20])
