"""Our matrix products give what torch's give, whatever the shape, and the same bits however many rows come together."""

import pytest
import torch
from torch import Tensor

from headrace.engine.config import Quantization
from headrace.engine.kernels.library import CpuKernels, open_kernels
from headrace.engine.models.build import Product
from headrace.engine.models.products import (
    KernelProduct,
    ProductMaker,
    TorchInt8Product,
    TorchProduct,
    quantize_rows,
)

SHAPES = [(64, 16), (37, 4), (100, 52), (200, 128), (16, 260)]
"""Outputs and inputs: whole and broken panels, whole and broken vectors."""
NUM_ROWS = [1, 2, 5, 6, 7, 33]
QUANTIZATIONS: list[Quantization] = ["int8", "int8-weight-only"]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def worst(actual: Tensor, expected: Tensor) -> float:
    """The largest error, in units of what a typical result is."""
    return float((actual.double() - expected.double()).abs().max() / expected.double().pow(2).mean().sqrt())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_equals_torchs(
    kernels: CpuKernels, shape: tuple[int, int], dtype: torch.dtype, has_bias: bool
) -> None:
    weight, bias = random(*shape, dtype=dtype), random(shape[0], dtype=dtype, seed=1) if has_bias else None
    ours, exact = (
        KernelProduct(kernels, weight, bias),
        TorchProduct(weight.double(), None if bias is None else bias.double()),
    )
    for num_rows in NUM_ROWS:
        x = random(num_rows, shape[1], dtype=dtype, seed=num_rows)
        assert ours(x).dtype == dtype
        assert worst(ours.unrounded(x), exact(x.double())) < 2e-6


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_int8_product_equals_its_torch_twin(
    kernels: CpuKernels, shape: tuple[int, int], quantization: Quantization, dtype: torch.dtype
) -> None:
    weight, bias = random(*shape, dtype=dtype), random(shape[0], dtype=dtype, seed=1)
    ours = KernelProduct(kernels, weight, bias, quantization=quantization)
    twin = TorchInt8Product(weight, bias, quantization=quantization)
    for num_rows in NUM_ROWS:
        x = random(num_rows, shape[1], dtype=dtype, seed=num_rows)
        # An input halfway between two steps may be rounded to the other one.
        assert worst(ours.unrounded(x), twin.unrounded(x)) < (0.03 if quantization == "int8" else 3e-4)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_extreme_rows_stay_finite_and_zeros_stay_zero(kernels: CpuKernels, quantization: Quantization) -> None:
    weight = torch.cat((torch.zeros(1, 64), torch.full((1, 64), 1e30), torch.full((1, 64), -1e-30), random(5, 64)))
    x = torch.cat((torch.zeros(1, 64), random(1, 64) * 1e-30, torch.full((1, 64), 100.0)))
    y = KernelProduct(kernels, weight, None, quantization=quantization)(x)
    assert y.isfinite().all()
    assert not y[0].any()
    assert not y[:, 0].any()
    assert worst(y[2, 1:2], torch.tensor([64 * 1e32])) < 0.02


@pytest.mark.parametrize("quantization", [None, *QUANTIZATIONS])
def test_a_rows_bits_do_not_depend_on_the_other_rows(kernels: CpuKernels, quantization: Quantization | None) -> None:
    product = KernelProduct(kernels, random(100, 64), None, quantization=quantization)
    x = random(40, 64, seed=3)
    together = product(x)
    assert all(torch.equal(product(x[row : row + 1])[0], together[row]) for row in range(len(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("quantization", [None, *QUANTIZATIONS])
def test_rows_of_the_packed_weight_are_those_of_the_twin(
    kernels: CpuKernels, dtype: torch.dtype, quantization: Quantization | None
) -> None:
    weight, row_ids = random(100, 64, dtype=dtype), torch.tensor([99, 0, 64, 3, 99])
    twin: Product = TorchProduct(weight, None)
    if quantization is not None:
        twin = TorchInt8Product(weight, None, quantization=quantization)
    ours = KernelProduct(kernels, weight, None, quantization=quantization)
    assert torch.equal(ours.rows(row_ids), twin.rows(row_ids))


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_threads_change_no_bit(kernels: CpuKernels, quantization: Quantization | None) -> None:
    several = open_kernels(num_threads=3, isa=kernels.isa)
    assert several is not None
    weight, x = random(1000, 256), random(20, 256)
    one = KernelProduct(kernels, weight, None, quantization=quantization)
    three = KernelProduct(several, weight, None, quantization=quantization)
    for _ in range(50):
        assert torch.equal(one(x), three(x))


def test_quantized_rows_are_within_half_a_step() -> None:
    weight = random(50, 70)
    rows = quantize_rows(weight)
    error = (rows.values * rows.scales.unsqueeze(1) - weight).abs()
    assert (error <= rows.scales.unsqueeze(1) * 0.5001).all()
    assert rows.values.abs().amax(dim=1).eq(127).all()


def test_a_weight_that_the_kernels_cannot_take_goes_to_torch(kernels: CpuKernels) -> None:
    maker = ProductMaker(kernels=kernels)
    assert isinstance(maker(random(8, 6), None), KernelProduct)
    assert isinstance(maker(random(8, 5, dtype=torch.bfloat16), None), TorchProduct)
    assert isinstance(maker(random(8, 6, dtype=torch.float16), None), TorchProduct)
    assert isinstance(ProductMaker(kernels=kernels, quantization="int8")(random(8, 6), None), TorchInt8Product)
    assert isinstance(ProductMaker()(random(8, 6), None), TorchProduct)
