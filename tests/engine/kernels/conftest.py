"""The compiled kernels, for each instruction set that this CPU has."""

import pytest

from headrace.engine.kernels.library import CpuKernels, open_kernels
from headrace.engine.kernels.structures import Isa


@pytest.fixture(scope="session", params=[Isa.AVX2, Isa.AVX512], ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    opened = open_kernels(num_threads=1, isa=request.param)
    if opened is None:
        pytest.skip(f"no {request.param.name} kernels here")
    return opened
