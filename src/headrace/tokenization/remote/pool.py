"""Tokenizes at the endpoints that discovery offers, and with the local tokenizer where they fail.

Rules. 1: a request has one deadline over all its attempts. 2: an attempt that fails moves on to another endpoint if
there is one. 3: what no endpoint answered goes to the local tokenizer, and the result says why; what an endpoint
refused as the client's fault does not. 4: a cancelled request leaves nothing running.
"""

import random as random_numbers
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from prometheus_client import CollectorRegistry

from headrace.errors import HeadraceError, ModelNotFoundError
from headrace.tokenization.prompt import ChatPrompt
from headrace.tokenization.remote.call import Asked, RemoteCall
from headrace.tokenization.remote.endpoints import EndpointSource
from headrace.tokenization.remote.fallback import (
    FallbackReason,
    LocalTokenizers,
    PoolEncoded,
    RemoteUnavailableError,
    reason_of,
)
from headrace.tokenization.remote.instruments import UNKNOWN_MODEL, RemoteInstruments
from headrace.tokenization.remote.members import PoolMembers, PoolMemberStatistics
from headrace.tokenization.remote.parity import ParityChecks, ParitySample
from headrace.tokenization.remote.retry import RetryPolicy
from headrace.tokenization.remote.settings import RemotePoolSettings, RemoteTokenizerSettings
from headrace.tokenization.remote.tokenizer import RemoteTokenizer, decode_bodies, encode_bodies
from headrace.tokenization.remote.transport import RemoteTransport, over_http
from headrace.tokenization.tokenizer import TokenIds

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePoolStatistics:
    """The pool at one moment."""

    is_enabled: bool
    members: tuple[PoolMemberStatistics, ...]
    num_requests: int
    fallbacks: tuple[tuple[FallbackReason, int], ...]
    """Requests that no endpoint answered, by reason."""
    num_parity_checks: int
    num_parity_mismatches: int


class RemoteTokenizerPool:
    """See the module. Serves one event loop; an asynchronous context manager."""

    def __init__(
        self,
        source: EndpointSource,
        *,
        settings: RemotePoolSettings | None = None,
        remote: RemoteTokenizerSettings | None = None,
        local: LocalTokenizers | None = None,
        registry: CollectorRegistry | None = None,
        transport: RemoteTransport | None = None,
        random: Callable[[], float] = random_numbers.random,
    ) -> None:
        """`source` says where models are served; `local` answers what they cannot. Metrics go to `registry`, unless the
        pool is switched off. The pool closes its `transport`, also a given one."""
        self._settings = settings or RemotePoolSettings()
        self._remote = remote or RemoteTokenizerSettings()
        self._local = local
        self._policy = RetryPolicy.of(self._remote, random=random)
        self._transport = transport or over_http(self._remote)
        shown = registry if registry is not None and self._settings.enabled else CollectorRegistry()
        self._instruments = RemoteInstruments(shown)
        self._members = PoolMembers(
            source,
            settings=self._settings,
            remote=self._remote,
            transport=self._transport,
            instruments=self._instruments,
        )
        self._parity = ParityChecks(
            share=self._settings.parity_share,
            max_checks=self._settings.max_parity_checks,
            random=random,
            instruments=self._instruments,
        )
        self._num_requests = 0
        self._num_fallbacks: Counter[FallbackReason] = Counter()

    async def encode(
        self,
        prompt: str | ChatPrompt,
        *,
        model: str,
        add_special_tokens: bool = True,
        timeout_s: float | None = None,
    ) -> PoolEncoded:
        """The ids of `prompt` from an endpoint of `model`, within `timeout_s` (None, or more than the settings':
        theirs); else the local tokenizer's, whose own time comes on top.

        Raises InvalidRequestError in the endpoint's words for what it refuses. Where no local tokenizer stands in:
        ModelNotFoundError, OverloadedError, UpstreamError and its kinds, UnsupportedError, PayloadTooLargeError. Raises
        RemoteClosedError once the pool is closed.
        """
        bodies = encode_bodies(prompt, model=model, add_special_tokens=add_special_tokens, of=self._remote)
        is_chat = isinstance(prompt, ChatPrompt)

        async def ask(tokenizer: RemoteTokenizer, deadline_s: float) -> TokenIds:
            answer = await tokenizer.encode_once(bodies, deadline_s=deadline_s, is_chat=is_chat)
            return answer.token_ids

        async def ask_locally(local: LocalTokenizers, reason: FallbackReason) -> PoolEncoded:
            own = await local.encode(prompt, model=model, add_special_tokens=add_special_tokens)
            return PoolEncoded(own.token_ids, own.source, own.queue_wait_s, own.encode_s, fallback_reason=reason)

        try:
            asked = await self._ask(ask, model=model, timeout_s=timeout_s)
        except HeadraceError as error:
            return await self._fall_back(ask_locally, error, model=model)
        self._instruments.encoded(model=model, encode_s=asked.ask_s)
        self._offer_for_parity(asked, prompt, model=model, add_special_tokens=add_special_tokens)
        return PoolEncoded(asked.result, "remote", asked.wait_s, asked.ask_s, endpoint=asked.tokenizer.url)

    async def decode(
        self,
        token_ids: Sequence[int] | TokenIds,
        *,
        model: str,
        skip_special_tokens: bool = False,
        timeout_s: float | None = None,
    ) -> str:
        """The text of `token_ids`, from where `encode` would get its ids. Raises as it does."""
        bodies = decode_bodies(token_ids, model=model, skip_special_tokens=skip_special_tokens, of=self._remote)

        async def ask(tokenizer: RemoteTokenizer, deadline_s: float) -> str:
            return await tokenizer.decode_once(bodies, deadline_s=deadline_s)

        async def ask_locally(local: LocalTokenizers, reason: FallbackReason) -> str:  # noqa: ARG001
            return await local.decode(token_ids, model=model, skip_special_tokens=skip_special_tokens)

        try:
            return (await self._ask(ask, model=model, timeout_s=timeout_s)).result
        except HeadraceError as error:
            return await self._fall_back(ask_locally, error, model=model)

    async def _ask(
        self,
        ask: Callable[[RemoteTokenizer, float], Awaitable[ResultT]],
        *,
        model: str,
        timeout_s: float | None,
    ) -> Asked[ResultT]:
        """`ask` one endpoint after another, until one answers or nothing is left to try."""
        if not self._settings.enabled:
            raise RemoteUnavailableError("remote tokenizers are switched off (enabled)", reason="disabled")
        self._num_requests += 1
        self._instruments.requested(model=self._label(model))
        call = RemoteCall(ask, model=model, members=self._members, policy=self._policy, instruments=self._instruments)
        longest_s = self._remote.request_timeout_s
        return await call.run(timeout_s=longest_s if timeout_s is None else min(timeout_s, longest_s))

    async def _fall_back(
        self,
        ask_locally: Callable[[LocalTokenizers, FallbackReason], Awaitable[ResultT]],
        error: HeadraceError,
        *,
        model: str,
    ) -> ResultT:
        """What the local tokenizer gives; raises `error` where that one may not or cannot answer."""
        reason = reason_of(error)
        if reason is None:
            raise error
        self._num_fallbacks[reason] += 1
        self._instruments.fell_back(model=self._label(model), reason=reason)
        if self._local is None or self._settings.fallback == "fail":
            raise error
        try:
            return await ask_locally(self._local, reason)
        except ModelNotFoundError:
            if reason in {"disabled", "no_endpoint"}:
                raise
            raise error from None

    def _offer_for_parity(
        self, asked: Asked[TokenIds], prompt: str | ChatPrompt, *, model: str, add_special_tokens: bool
    ) -> None:
        if self._local is None:
            return

        async def ask(text: str) -> TokenIds:
            encoded = await asked.tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return encoded.token_ids

        sample = ParitySample(
            prompt=prompt,
            model=model,
            add_special_tokens=add_special_tokens,
            url=asked.tokenizer.url,
            remote_ids=asked.result,
            ask=ask,
            local=self._local,
        )
        self._parity.offer(sample)

    def _label(self, model: str) -> str:
        return model if self._members.serves(model) else UNKNOWN_MODEL

    def statistics(self) -> RemotePoolStatistics:
        """The pool at this moment. Call it in the loop."""
        return RemotePoolStatistics(
            is_enabled=self._settings.enabled,
            members=self._members.statistics(),
            num_requests=self._num_requests,
            fallbacks=tuple(sorted(self._num_fallbacks.items())),
            num_parity_checks=self._parity.num_checks,
            num_parity_mismatches=self._parity.num_mismatches,
        )

    async def aclose(self) -> None:
        """End probes, comparisons and connections; whoever waits gets RemoteClosedError. Idempotent."""
        await self._members.aclose()
        await self._parity.aclose()
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        state = "on" if self._settings.enabled else "off"
        return (
            f"RemoteTokenizerPool({state}, num_tokenizers={len(self._members)}, "
            f"num_requests={self._num_requests}, num_fallbacks={self._num_fallbacks.total()})"
        )
