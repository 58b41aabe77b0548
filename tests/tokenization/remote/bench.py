"""A pool of remote tokenizers over hosts in memory, for tests in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.errors import ModelNotFoundError
from headrace.testing.fake_tokenizer_server import FakeHost, FakeTokenizerApi, FakeTransport
from headrace.testing.virtual_time import run_virtual
from headrace.tokenization import ByteTokenizer, ChatPrompt, Encoded, TokenIds
from headrace.tokenization.remote.endpoints import StaticEndpoints
from headrace.tokenization.remote.pool import RemoteTokenizerPool
from headrace.tokenization.remote.settings import RemotePoolSettings, RemoteTokenizerSettings
from headrace.tokenization.remote.transport import RemoteAnswer

ONE, TWO = "http://one:8000", "http://two:8000"
H = [104]


class Local:
    """A local tokenizer for `demo` that counts how often it was asked."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def encode(self, prompt: str | ChatPrompt, *, model: str, add_special_tokens: bool = True) -> Encoded:
        self.num_asked += 1
        if model != "demo":
            raise ModelNotFoundError(f"the model {model!r} does not exist", param="model")
        assert isinstance(prompt, str)
        return Encoded(ByteTokenizer().encode_batch([prompt], add_special_tokens=False)[0], "short", 0.0, 0.0)

    async def decode(
        self, token_ids: Sequence[int] | TokenIds, *, model: str, skip_special_tokens: bool = False
    ) -> str:
        self.num_asked += 1
        return ByteTokenizer().decode(token_ids, skip_special_tokens=skip_special_tokens)


class Bench:
    """A pool over hosts in memory, its source and its metrics. Hosts are made for every address of the source."""

    def __init__(
        self,
        addresses: dict[str, list[str]] | None = None,
        *,
        local: Local | None = None,
        remote: dict[str, object] | None = None,
        **settings: object,
    ) -> None:
        by_model = {"demo": ["one"]} if addresses is None else addresses
        self.hosts = {
            f"http://{name}:8000": FakeHost(api=FakeTokenizerApi(model=model))
            for model, names in by_model.items()
            for name in names
        }
        self.transport = FakeTransport(self.hosts)
        self.registry = CollectorRegistry()
        self.pool = RemoteTokenizerPool(
            StaticEndpoints(by_model),
            settings=RemotePoolSettings(**({"enabled": True, "parity_share": 0.0} | settings)),  # type: ignore[arg-type]
            remote=RemoteTokenizerSettings(**(remote or {})),  # type: ignore[arg-type]
            local=local,
            registry=self.registry,
            transport=self.transport,
            random=lambda: 0.5,
        )

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"headrace_remote_tokenizer_{name}", labels)

    @property
    def num_members(self) -> int:
        return len(self.pool.statistics().members)


def virtually(test: Callable[[Bench], Coroutine[Any, Any, None]], bench: Bench) -> None:
    async def main() -> None:
        async with bench.pool:
            await test(bench)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left
        assert all(host.num_in_flight == 0 for host in bench.hosts.values())

    run_virtual(main())


async def reason(call: Awaitable[Any]) -> str | None:
    found: str | None = (await call).fallback_reason
    return found


def failed(status: int, *, retry_after: str | None = None) -> RemoteAnswer:
    return RemoteAnswer(status=status, body=b'{"error":{"message":"no"}}', retry_after=retry_after)
