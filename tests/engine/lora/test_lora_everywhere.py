"""Adapters work with everything else: shared models, embeddings, quantization, sleep, the front end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.devices.thread_workers import ThreadWorkers
from tests.engine.reference_models import ReferenceModel, merge_lora

from headrace.engine.async_engine import AsyncLLMEngine
from headrace.engine.config import AsyncEngineArgs, EngineArgs, LoRAConfig
from headrace.engine.core.engine_core import EngineCore
from headrace.engine.lora.adapted_layers import AdaptedLayers
from headrace.engine.lora.worker_adapters import WorkerAdapters
from headrace.engine.lora_request import LoRARequest
from headrace.engine.models.products import ProductMaker
from headrace.engine.outputs import RequestOutputKind
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import InvalidRequestError
from headrace.testing.core_driver import CoreDriver, add_request
from headrace.testing.random_lora import write_random_lora
from headrace.testing.tiny_model import write_tiny_model

MakeDriver = Callable[..., CoreDriver]

NAMES = (None, "wide", "attention", "mlp", "output")
PROMPT = [(7 * i * i + 11 * i) % 160 for i in range(30)]


def add_each(driver: CoreDriver, adapted: Any) -> dict[str, list[int]]:
    """One request without an adapter and one with each; the right answers."""
    for name in NAMES:
        lora = None if name is None else adapted.request(name)
        driver.add(add_request(str(name), PROMPT, lora=lora))
    return {str(name): adapted.greedy(name, PROMPT) for name in NAMES}


@pytest.mark.parametrize("size", [2, 6])
def test_workers_that_share_a_model_cut_adapters_as_its_layers(size: int, adapted: Any) -> None:
    args = EngineArgs(
        model=str(adapted.base.directory),
        tensor_parallel_size=size,
        enable_lora=True,
        max_loras=2,
        cpu_threads=1,
        device="cpu",
    )
    config = args.create_engine_config()
    executor = ThreadWorkers(config)
    try:
        driver = CoreDriver(EngineCore(config, executor))
        expected = add_each(driver, adapted)
        assert driver.run() == expected
    finally:
        executor.close()


class OtherFailsGroup:
    """A group in which another worker cannot do what this one can."""

    rank = 0
    size = 2

    def add_up(self, partial: torch.Tensor) -> torch.Tensor:
        return partial

    def least(self, value: int) -> int:
        return min(value, 0)

    def close(self) -> None:
        pass


def test_an_adapter_that_one_worker_cannot_load_fails_on_all(adapted: Any) -> None:
    config = LoRAConfig(max_loras=2, max_lora_rank=16, max_cpu_loras=2)
    layers = AdaptedLayers(device=torch.device("cpu"), make_product=ProductMaker())
    for layer in range(2):
        layers.attach(f"model.layers.{layer}.self_attn.q_proj", input_size=48, output_sizes=(96,))
        layers.attach(f"model.layers.{layer}.self_attn.v_proj", input_size=48, output_sizes=(32,))
    adapters = WorkerAdapters(
        config, layers, device=torch.device("cpu"), dtype=torch.float32, parallel=OtherFailsGroup()
    )
    with pytest.raises(InvalidRequestError, match="does not load on every worker"):
        adapters.add(adapted.request("attention"))
    assert adapters.listed() == []
    adapters.check_integrity()


def test_an_adapter_changes_embeddings_as_the_merged_model(adapted: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(adapted.base.directory, enable_lora=True, max_num_batched_tokens=16, max_num_seqs=8)
    for name in ("wide", "mlp"):
        driver.add(
            add_request(
                name,
                PROMPT,
                lora=adapted.request(name),
                pooling_params=PoolingParams(pooling_type="mean", normalize=False),
            )
        )
    driver.run()
    for name in ("wide", "mlp"):
        merged: ReferenceModel = merge_lora(adapted.base, adapted.paths[name])
        vector = np.frombuffer(driver.ends[name].embedding or b"", dtype=np.float32)
        expected = merged.hidden_states(PROMPT).mean(dim=0).numpy()
        np.testing.assert_allclose(vector, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("family", ["llama-biased", "mistral-window", "qwen2", "qwen3-biased-tied"])
def test_every_family_takes_adapters(
    family: str, make_reference: Callable[[str], ReferenceModel], make_driver: MakeDriver, tmp_path: Path
) -> None:
    base = make_reference(family)
    path = write_random_lora(tmp_path / "adapter", model=base.directory, rank=4, scale=0.5)
    driver = make_driver(base.directory, dtype="float32", enable_lora=True)
    driver.add(add_request("adapted", PROMPT, lora=LoRARequest("a", 1, str(path))))
    driver.add(add_request("base", PROMPT))
    assert driver.run() == {"adapted": merge_lora(base, path).greedy(PROMPT), "base": base.greedy(PROMPT)}


def test_an_adapter_on_quantized_weights_begins_as_the_merged_model(adapted: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(adapted.base.directory, enable_lora=True, quantization="int8")
    prompts = [PROMPT[:length] for length in (5, 10, 15, 20, 25, 30)]
    for index, prompt in enumerate(prompts):
        driver.add(add_request(str(index), prompt, lora=adapted.request("wide")))
    tokens = driver.run()
    num_alike = sum(tokens[str(index)][0] == adapted.greedy("wide", prompt)[0] for index, prompt in enumerate(prompts))
    assert num_alike >= len(prompts) - 2


@pytest.mark.parametrize("level", [1, 2])
def test_adapters_are_back_after_sleep(level: int, adapted: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(adapted.base.directory, enable_lora=True, max_loras=2)
    expected = add_each(driver, adapted)
    for _ in range(3):
        driver.step()
    driver.core.operations.sleep(level)
    driver.core.operations.wake_up(None)
    assert driver.run() == expected


async def test_the_front_end_takes_adapters(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    loras = [
        LoRARequest(f"adapter-{seed}", seed, str(write_random_lora(tmp_path / str(seed), model=model, seed=seed)))
        for seed in (1, 2)
    ]
    args = AsyncEngineArgs(model=str(model), device="cpu", cpu_threads=1, enable_lora=True, max_loras=1)
    params = SamplingParams(temperature=0.0, max_tokens=8, output_kind=RequestOutputKind.FINAL_ONLY)
    async with AsyncLLMEngine.from_engine_args(args, in_process=True) as engine:
        assert await engine.add_lora(loras[0]) is True
        texts = []
        for number, lora in enumerate((None, *loras)):
            (output,) = [o async for o in engine.generate("The wheel turns", params, str(number), lora_request=lora)]
            texts.append(output.outputs[0].text)
        assert len(set(texts)) == 3
        assert await engine.list_loras() == {1, 2}
        assert await engine.pin_lora(2) is True
        assert await engine.remove_lora(1) is True
        assert await engine.remove_lora(1) is False
        bad = LoRARequest("bad", 3, str(tmp_path / "nowhere"))
        with pytest.raises(InvalidRequestError, match="no LoRA adapter at"):
            await engine.add_lora(bad)
        with pytest.raises(InvalidRequestError, match="no LoRA adapter at"):
            async for _ in engine.generate("The wheel turns", params, "bad", lora_request=bad):
                pass
        await engine.check_integrity()
        assert not engine.errored
