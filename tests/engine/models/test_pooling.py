"""Embeddings are the pooled hidden states that transformers gives, however the prompt is computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace.engine.config import EngineArgs
from headrace.engine.front.input_processor import InputProcessor
from headrace.engine.model_config import load_model_config
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import InvalidRequestError
from headrace.testing.core_driver import CoreDriver, add_request
from headrace.tokenization import TokenizationService

MakeDriver = Callable[..., CoreDriver]

PROMPTS = [[(index * 37 + step * step * 5 + 3) % 160 for step in range(1 + 13 * index)] for index in range(6)]
POOLINGS = ("last", "mean", "cls")


def expected_vector(model: Any, prompt: list[int], params: PoolingParams) -> torch.Tensor:
    states = model.hidden_states(prompt)
    pooled = {"last": states[-1], "cls": states[0], "mean": states.mean(dim=0)}[params.pooling_type or "last"]
    pooled = pooled[: params.dimensions]
    return pooled / pooled.norm() if params.normalize else pooled


def vector(driver: CoreDriver, request_id: str) -> torch.Tensor:
    end = driver.ends[request_id]
    assert end.finish_reason == "stop"
    assert end.new_token_ids == ()
    assert end.embedding is not None
    return torch.from_numpy(np.frombuffer(end.embedding, dtype=np.float32).copy())


def check_all(driver: CoreDriver, model: Any, params: PoolingParams) -> None:
    for index, prompt in enumerate(PROMPTS):
        driver.add(add_request(str(index), prompt, pooling_params=params))
    driver.run()
    for index, prompt in enumerate(PROMPTS):
        expected = expected_vector(model, prompt, params)
        torch.testing.assert_close(vector(driver, str(index)), expected, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"max_num_batched_tokens": 7, "max_num_seqs": 4},
        {"max_num_seqs": 1, "block_size": 4},
        {"cpu_kernels": "off", "max_num_batched_tokens": 20, "max_num_seqs": 6},
    ],
    ids=str,
)
@pytest.mark.parametrize("pooling_type", POOLINGS)
def test_a_vector_is_pooled_from_the_hidden_states(
    pooling_type: Any, args: dict[str, Any], llama: Any, make_driver: MakeDriver
) -> None:
    check_all(make_driver(llama.directory, **args), llama, PoolingParams(pooling_type=pooling_type))


@pytest.mark.parametrize("family", ["mistral-window", "qwen2", "qwen3"])
def test_every_family_embeds(family: str, make_reference: Callable[[str], Any], make_driver: MakeDriver) -> None:
    model = make_reference(family)
    check_all(make_driver(model.directory), model, PoolingParams(pooling_type="mean"))


def test_a_vector_is_cut_before_it_is_normalized(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory)
    for name, params in {
        "cut": PoolingParams(dimensions=8),
        "raw": PoolingParams(normalize=False),
        "raw and cut": PoolingParams(normalize=False, dimensions=3, pooling_type="mean"),
    }.items():
        driver.add(add_request(name, PROMPTS[2], pooling_params=params))
        driver.run()
        torch.testing.assert_close(
            vector(driver, name), expected_vector(llama, PROMPTS[2], params), atol=2e-5, rtol=2e-4
        )


def test_answers_and_vectors_share_steps(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, max_num_batched_tokens=16, max_num_seqs=8)
    for index, prompt in enumerate(PROMPTS):
        driver.add(add_request(f"answer {index}", prompt))
        pooling = PoolingParams(pooling_type=POOLINGS[index % 3])
        driver.add(add_request(f"vector {index}", prompt, pooling_params=pooling))
    tokens = driver.run()
    for index, prompt in enumerate(PROMPTS):
        assert tokens[f"answer {index}"] == llama.greedy(prompt)
        expected = expected_vector(llama, prompt, PoolingParams(pooling_type=POOLINGS[index % 3]))
        torch.testing.assert_close(vector(driver, f"vector {index}"), expected, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize(("pooling_type", "num_cached"), [("last", 64), ("mean", 0), ("cls", 0)])
def test_only_the_last_token_takes_the_others_from_the_cache(
    pooling_type: Any, num_cached: int, llama: Any, make_driver: MakeDriver
) -> None:
    driver = make_driver(llama.directory, block_size=4)
    prompt = PROMPTS[5]
    driver.add(add_request("answer", prompt))
    driver.run()
    params = PoolingParams(pooling_type=pooling_type)
    driver.add(add_request("vector", prompt, pooling_params=params))
    driver.run()
    assert driver.ends["vector"].num_cached_tokens == num_cached
    torch.testing.assert_close(vector(driver, "vector"), expected_vector(llama, prompt, params), atol=2e-5, rtol=2e-4)


def test_a_preempted_request_is_pooled_anew(llama: Any, make_driver: MakeDriver) -> None:
    block_bytes = load_model_config(str(llama.directory)).kv_values_per_token * 4 * 4
    driver = make_driver(
        llama.directory,
        block_size=4,
        max_model_len=80,
        max_num_batched_tokens=4,
        max_num_seqs=4,
        kv_cache_memory_bytes=20 * block_bytes,
    )
    driver.add(add_request("answer", PROMPTS[1], max_tokens=60))
    driver.add(add_request("vector", PROMPTS[4], pooling_params=PoolingParams(pooling_type="mean")))
    driver.run()
    assert driver.core.statistics().num_preemptions > 0
    expected = expected_vector(llama, PROMPTS[4], PoolingParams(pooling_type="mean"))
    torch.testing.assert_close(vector(driver, "vector"), expected, atol=2e-5, rtol=2e-4)


def test_a_prompt_may_fill_the_whole_context(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, max_model_len=14)
    driver.add(add_request("fits", PROMPTS[1], pooling_params=PoolingParams()))
    driver.run()
    assert len(vector(driver, "fits")) == 48


def test_an_aborted_request_leaves_nothing(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory, max_num_batched_tokens=8, max_num_seqs=4)
    driver.add(add_request("a", PROMPTS[5], pooling_params=PoolingParams(pooling_type="mean")))
    driver.step()
    driver.abort("a")
    driver.add(add_request("b", PROMPTS[2], pooling_params=PoolingParams(pooling_type="mean")))
    driver.run()
    assert driver.ends["a"].finish_reason == "abort"
    expected = expected_vector(llama, PROMPTS[2], PoolingParams(pooling_type="mean"))
    torch.testing.assert_close(vector(driver, "b"), expected, atol=2e-5, rtol=2e-4)


def test_more_dimensions_than_the_model_has_are_refused(llama: Any, make_driver: MakeDriver) -> None:
    driver = make_driver(llama.directory)
    with pytest.raises(InvalidRequestError, match="dimensions is 49, but the model's vectors have 48"):
        driver.core.add_request(add_request("a", [1, 2], pooling_params=PoolingParams(dimensions=49)))


@pytest.mark.parametrize(
    ("field", "value"),
    [("pooling_type", "max"), ("dimensions", 0), ("dimensions", True), ("dimensions", 1.5), ("normalize", "yes")],
)
def test_a_bad_field_is_named(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        PoolingParams(**{field: value})
    assert caught.value.param == field


@pytest.fixture
def headless_dir(make_reference: Callable[[str], Any], tmp_path: Path) -> Path:
    """An embedding model as sentence-transformers saves it: no head, no prefix, its pooling beside it."""
    model = make_reference("qwen3").model.model
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]')
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return tmp_path


def test_a_model_without_a_head_embeds_by_its_own_pooling(
    headless_dir: Path, make_reference: Callable[[str], Any], make_driver: MakeDriver
) -> None:
    driver = make_driver(headless_dir, dtype="float32")
    driver.add(add_request("a", PROMPTS[3], pooling_params=PoolingParams()))
    driver.run()
    expected = expected_vector(make_reference("qwen3"), PROMPTS[3], PoolingParams(pooling_type="mean"))
    torch.testing.assert_close(vector(driver, "a"), expected, atol=2e-5, rtol=2e-4)


async def test_a_model_without_a_head_generates_nothing(headless_dir: Path) -> None:
    config = EngineArgs(model=str(headless_dir)).create_engine_config()
    assert not config.model.can_generate
    async with TokenizationService() as tokenization:
        inputs = InputProcessor(config, tokenization=tokenization)
        inputs.check("a", PoolingParams(), priority=0)
        with pytest.raises(InvalidRequestError, match="only embeds"):
            inputs.check("a", SamplingParams(), priority=0)
