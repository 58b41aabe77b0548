"""The decoder in one call equals the decoder layer by layer, and gives a request the same bits in any company."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.engine.kernels.library import CpuKernels
from headrace.engine.kernels.paged_attention import KernelAttention, KernelKVCache, spans_of
from headrace.engine.model_config import ModelConfig, load_model_config
from headrace.engine.models.decoder import CausalModel
from headrace.engine.models.forward_batch import ForwardBatch
from headrace.engine.models.load import load_model
from headrace.engine.models.products import ProductMaker
from headrace.testing.core_driver import CoreDriver, add_request

MakeDriver = Callable[..., CoreDriver]
FAMILIES = ["llama-biased", "llama-yarn-rope", "mistral-window", "qwen2-window", "qwen3"]
LENGTHS = [1, 40, 230]
"""Together more rows than the kernels compute at once."""


class AlwaysAdapted:
    """Adapters that add nothing, in use: so every layer is computed by itself."""

    is_used = True

    def attach(self, *names: str, **sizes: object) -> Callable[[Tensor, Tensor], None]:
        return lambda y, x: None


def build(directory: Path, kernels: CpuKernels, dtype: torch.dtype, **kwargs: Any) -> CausalModel:
    return load_model(
        load_model_config(str(directory)),
        load_format="safetensors",
        device=torch.device("cpu"),
        dtype=dtype,
        make_product=ProductMaker(kernels=kernels, quantization=kwargs.pop("quantization", None)),
        **kwargs,
    )


def run(model: CausalModel, config: ModelConfig, kernels: CpuKernels, dtype: torch.dtype) -> Tensor:
    """Hidden states of sequences of LENGTHS, all rows of them but the first."""
    cache = KernelKVCache(kernels, config, num_blocks=64, block_size=16, dtype=dtype)
    tables = torch.arange(60).view(3, 20).numpy()
    num_tokens = sum(LENGTHS)
    spans = spans_of(tables, table_rows=range(3), num_tokens=LENGTHS, starts=[0, 0, 0])
    batch = ForwardBatch(
        token_ids=torch.arange(num_tokens) * 37 % config.vocab_size,
        positions=torch.cat([torch.arange(length) for length in LENGTHS]),
        attention=KernelAttention(cache=cache, spans=spans, tables=tables),
        output_rows=torch.arange(1, num_tokens),
    )
    return model.forward(batch)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.15)], ids=str)
def test_one_call_equals_layer_by_layer(
    family: str, dtype: torch.dtype, tolerance: float, kernels: CpuKernels, make_reference: Callable[[str], Any]
) -> None:
    directory = make_reference(family).directory
    config = load_model_config(str(directory), max_model_len=256)
    fused = run(build(directory, kernels, dtype), config, kernels, dtype)
    layered = run(build(directory, kernels, dtype, adapters=AlwaysAdapted()), config, kernels, dtype)
    assert fused.shape == (sum(LENGTHS) - 1, config.hidden_size)
    assert fused.dtype == layered.dtype == dtype
    error = (fused.double() - layered.double()).pow(2).mean().sqrt() / layered.double().pow(2).mean().sqrt()
    assert 0 < error < tolerance, "equal to the last bit would mean that one way was taken twice"


PROMPTS = [[(index * 37 + step * step * 5 + 3) % 160 for step in range(1 + 12 * index)] for index in range(6)]


def answers(driver: CoreDriver, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    for name, prompt in prompts.items():
        driver.add(add_request(name, prompt, max_tokens=12))
    return {name: tokens for name, tokens in driver.run().items() if name in prompts}


@pytest.mark.parametrize(
    "args", [{"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int8-weight-only"}], ids=str
)
def test_rounded_numbers_give_the_same_answer_alone_batched_chunked_and_cached(
    args: dict[str, Any], llama: Any, make_driver: MakeDriver
) -> None:
    prompts = {str(index): prompt for index, prompt in enumerate(PROMPTS)}
    alone = make_driver(llama.directory, max_num_seqs=1, enable_prefix_caching=False, **args)
    expected = answers(alone, prompts)
    batched = make_driver(llama.directory, **args)
    assert answers(batched, prompts) == expected
    again = {f"{name} again": prompt for name, prompt in prompts.items()}
    assert answers(batched, again) == {f"{name} again": tokens for name, tokens in expected.items()}
    assert batched.ends["5 again"].num_cached_tokens > 0
    assert answers(make_driver(llama.directory, max_num_batched_tokens=7, max_num_seqs=5, **args), prompts) == expected


@pytest.mark.parametrize("quantization", ["int8", "int8-weight-only"])
def test_int8_answers_begin_as_float32_ones(quantization: str, llama: Any, make_driver: MakeDriver) -> None:
    prompts = {str(index): prompt for index, prompt in enumerate(PROMPTS)}
    tokens = answers(make_driver(llama.directory, quantization=quantization), prompts)
    assert sum(tokens[name][0] == llama.greedy(prompt)[0] for name, prompt in prompts.items()) >= len(prompts) - 1


@pytest.mark.parametrize("quantization", ["int8", "int8-weight-only"])
def test_int8_works_without_kernels(quantization: str, llama: Any, make_driver: MakeDriver) -> None:
    prompts = {str(index): prompt for index, prompt in enumerate(PROMPTS)}
    tokens = answers(make_driver(llama.directory, quantization=quantization, cpu_kernels="off"), prompts)
    assert sum(tokens[name][0] == llama.greedy(prompt)[0] for name, prompt in prompts.items()) >= len(prompts) - 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_threads_give_the_answers_of_one(dtype: str, llama: Any, make_driver: MakeDriver) -> None:
    prompts = {str(index): prompt for index, prompt in enumerate(PROMPTS)}
    one, two = (answers(make_driver(llama.directory, dtype=dtype, cpu_threads=count), prompts) for count in (1, 2))
    assert one == two
