"""Our CPU kernels beside their plain-torch twins, on the shapes of a 135M Llama: hidden 576, 9 heads over 3.

    python benchmarks/engine_kernels.py [--threads 1] [--isa AVX2]

Times are the best of several rounds, of CPU time with one thread, so that other work on the machine disturbs little.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from headrace.engine.config import Quantization
from headrace.engine.kernels.library import CpuKernels, open_kernels
from headrace.engine.kernels.paged_attention import KernelAttention, KernelKVCache, spans_of
from headrace.engine.kernels.structures import Isa
from headrace.engine.models.forward_batch import AttentionStep
from headrace.engine.models.products import KernelProduct, TorchProduct
from headrace.engine.runner.attention import PagedAttention, decode_groups, prefill_span
from headrace.engine.runner.paged_cache import PagedKVCache
from headrace.testing.model_shapes import SMALLEST_MODEL

LAYER_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD_SHAPE = (49152, 576)
NUM_LAYERS = 30
SHAPES = (*LAYER_SHAPES * NUM_LAYERS, HEAD_SHAPE)
BATCHES = (1, 4, 8, 16, 64, 128)
NUM_BLOCKS = 1600

CONFIG = dataclasses.replace(
    SMALLEST_MODEL,
    max_model_len=2048,
    vocab_size=HEAD_SHAPE[0],
    checkpoint_dtype="bfloat16",
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
)


def best_ms(func: Callable[[], object], *, num_threads: int, rounds: int = 7) -> float:
    """CPU time where one thread works, else wall time."""
    clock = time.thread_time if num_threads == 1 else time.perf_counter
    times = []
    for _ in range(rounds):
        started = clock()
        func()
        times.append(clock() - started)
    return min(times) * 1e3


def products(
    kernels: CpuKernels | None, dtype: torch.dtype, quantization: Quantization | None
) -> Sequence[KernelProduct | TorchProduct]:
    """Every matrix of the model, so that each step reads them from memory."""
    weights = (torch.randn(shape).to(dtype) for shape in SHAPES)
    if kernels is None:
        return [TorchProduct(weight, None) for weight in weights]
    return [KernelProduct(kernels, weight, None, quantization=quantization) for weight in weights]


def measure_products(kernels: CpuKernels, *, num_threads: int) -> None:
    print("\nall matrix products of a step, ms by number of tokens")
    print(f"{'':34}" + "".join(f"{batch:>8}" for batch in BATCHES))
    rows: list[tuple[str, CpuKernels | None, torch.dtype, Quantization | None]] = [
        ("torch bfloat16", None, torch.bfloat16, None),
        ("ours bfloat16", kernels, torch.bfloat16, None),
        ("ours int8", kernels, torch.bfloat16, "int8"),
        ("ours int8-weight-only", kernels, torch.bfloat16, "int8-weight-only"),
        ("torch float32", None, torch.float32, None),
        ("ours float32", kernels, torch.float32, None),
    ]
    for name, chosen, dtype, quantization in rows:
        made = products(chosen, dtype, quantization)
        times = [products_ms(made, dtype, batch=batch, num_threads=num_threads) for batch in BATCHES]
        print(f"{name:34}" + "".join(f"{ms:8.1f}" for ms in times), flush=True)


def products_ms(
    made: Sequence[KernelProduct | TorchProduct], dtype: torch.dtype, *, batch: int, num_threads: int
) -> float:
    inputs = {size: torch.randn(batch, size).to(dtype) for _, size in (*LAYER_SHAPES, HEAD_SHAPE)}
    pairs = list(zip(made, (inputs[size] for _, size in SHAPES), strict=True))
    rounds = 5 if batch < 64 else 3
    return best_ms(lambda: [product(x) for product, x in pairs], num_threads=num_threads, rounds=rounds)


def decode_steps(
    kernels: CpuKernels, dtype: torch.dtype, *, batch: int, context: int
) -> tuple[AttentionStep, AttentionStep]:
    """One token for each of `batch` sequences: the twin's step, and ours."""
    tables = np.arange(batch * (context // 16), dtype=np.int64).reshape(batch, -1)
    lens = np.full(batch, context, dtype=np.int64)
    plain = PagedKVCache(CONFIG, num_blocks=NUM_BLOCKS, block_size=16, device=torch.device("cpu"), dtype=dtype)
    slots = tables[:, -1] * 16 + 15
    twin = PagedAttention(
        plain, store_rows=plain.row_index(slots), groups=decode_groups(plain, tables, lens, dtype=dtype), spans=[]
    )
    cache = KernelKVCache(kernels, CONFIG, num_blocks=NUM_BLOCKS, block_size=16, dtype=dtype)
    spans = spans_of(tables, table_rows=range(batch), num_tokens=[1] * batch, starts=[context - 1] * batch)
    return twin, KernelAttention(cache=cache, spans=spans, tables=tables)


def prefill_steps(kernels: CpuKernels, dtype: torch.dtype, *, num_tokens: int) -> tuple[AttentionStep, AttentionStep]:
    """A whole prompt: the twin's step, and ours."""
    tables = np.arange(num_tokens // 16, dtype=np.int64).reshape(1, -1)
    plain = PagedKVCache(CONFIG, num_blocks=NUM_BLOCKS, block_size=16, device=torch.device("cpu"), dtype=dtype)
    span = prefill_span(plain, tables[0], first_row=0, start=0, num_tokens=num_tokens)
    slots = np.arange(num_tokens, dtype=np.int64)
    twin = PagedAttention(plain, store_rows=plain.row_index(slots), groups=[], spans=[span])
    cache = KernelKVCache(kernels, CONFIG, num_blocks=NUM_BLOCKS, block_size=16, dtype=dtype)
    spans = spans_of(tables, table_rows=[0], num_tokens=[num_tokens], starts=[0])
    return twin, KernelAttention(cache=cache, spans=spans, tables=tables)


def measure_attention(kernels: CpuKernels, *, num_threads: int) -> None:
    print("\nattention of one layer, us: torch, ours")
    cases = [(f"decode, {b} x {c}", b, c) for b, c in ((1, 1024), (16, 192), (64, 192), (16, 1024))]
    for dtype in (torch.bfloat16, torch.float32):
        steps = [(name, b, decode_steps(kernels, dtype, batch=b, context=c)) for name, b, c in cases]
        steps.append(("prefill, 1024", 1024, prefill_steps(kernels, dtype, num_tokens=1024)))
        for name, num_rows, pair in steps:
            q, k, v = (torch.randn(num_rows, heads, 64).to(dtype) for heads in (9, 3, 3))
            twin, ours = (best_ms(partial(step.attend, 0, q, k, v), num_threads=num_threads) * 1e3 for step in pair)
            print(f"{name:20}{str(dtype)[6:]:10}{twin:10.0f}{ours:10.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", choices=[isa.name for isa in Isa if isa], default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kernels = open_kernels(num_threads=options.threads, isa=Isa[options.isa] if options.isa else None)
    if kernels is None:
        raise SystemExit("no kernels here: no compiler at install, or a CPU without AVX2")
    print(kernels)
    with torch.inference_mode():
        measure_attention(kernels, num_threads=options.threads)
        measure_products(kernels, num_threads=options.threads)


if __name__ == "__main__":
    main()
