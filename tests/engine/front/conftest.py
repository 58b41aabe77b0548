"""An engine in front of a core without a model, whose steps the test decides."""

from collections.abc import AsyncIterator

import pytest

from headrace.engine.async_engine import AsyncLLMEngine
from headrace.engine.client.host import ThreadHost
from headrace.engine.settings import FrontEndSettings
from headrace.testing.fake_core import FakeCore, fake_engine_config
from headrace.tokenization import ByteTokenizer, TokenizationService


@pytest.fixture
async def tokenization() -> AsyncIterator[TokenizationService]:
    async with TokenizationService() as service:
        service.register("fake", ByteTokenizer())
        yield service


@pytest.fixture
def core() -> FakeCore:
    return FakeCore(num_blocks=4096)


@pytest.fixture
async def engine(core: FakeCore, tokenization: TokenizationService) -> AsyncIterator[AsyncLLMEngine]:
    """Started; its core is the fixture `core`, in a thread."""
    engine = AsyncLLMEngine(
        fake_engine_config(),
        host=ThreadHost(build_core=lambda _config: core),
        settings=FrontEndSettings(max_num_requests=300),
        tokenization=tokenization,
    )
    async with engine:
        yield engine
        core.release()
