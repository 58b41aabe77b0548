"""A model's tokenizer at one endpoint, asked over HTTP. Knows nothing of other endpoints: that is the pool's."""

import asyncio
import functools
import random as random_numbers
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from headrace.errors import UpstreamTimeoutError
from headrace.tokenization.prompt import ChatPrompt, Encoded
from headrace.tokenization.remote.attempts import RequestBodies, in_steps, pause_before_the_same_s, with_retries
from headrace.tokenization.remote.endpoints import base_url
from headrace.tokenization.remote.errors import error_of
from headrace.tokenization.remote.retry import RetryPolicy, read_retry_after
from headrace.tokenization.remote.settings import RemoteEngine, RemoteTokenizerSettings
from headrace.tokenization.remote.transport import RemoteTransport, over_http
from headrace.tokenization.remote.wire import TokenizeAnswer, reading_tokens, wire_of
from headrace.tokenization.tokenizer import TokenIds

_PROBE_TEXT = "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTokenizerStatistics:
    """One remote tokenizer at one moment. An attempt is one HTTP exchange, health checks included."""

    model: str
    url: str
    num_attempts: int
    num_retries: int
    num_in_flight: int
    max_model_len: int | None
    """The model's context as the endpoint told it last."""


class RemoteTokenizer:
    """Encodes and decodes through vLLM's or SGLang's endpoints. An asynchronous context manager; one event loop."""

    def __init__(
        self,
        *,
        model: str,
        url: str,
        settings: RemoteTokenizerSettings | None = None,
        engine: RemoteEngine | None = None,
        transport: RemoteTransport | None = None,
        random: Callable[[], float] = random_numbers.random,
    ) -> None:
        """`engine` overrides the settings'. Without a `transport` it has connections of its own, and closes them.

        Raises SettingsError for a URL that names no endpoint.
        """
        self._settings = settings or RemoteTokenizerSettings()
        self._model = model
        self._url = base_url(url, template="http://%s:8000")
        self._wire = wire_of(engine or self._settings.engine)
        self._pause_s = functools.partial(pause_before_the_same_s, RetryPolicy.of(self._settings, random=random))
        self._owns_transport = transport is None
        self._transport = transport or over_http(self._settings)
        self._num_attempts = 0
        self._num_retries = 0
        self._num_in_flight = 0
        self._max_model_len: int | None = None

    @property
    def url(self) -> str:
        """Of the endpoint, without a path to a route."""
        return self._url

    @property
    def max_model_len(self) -> int | None:
        """The model's context as the endpoint told it last; None before the first answer, or if it does not say."""
        return self._max_model_len

    async def encode(
        self, prompt: str | ChatPrompt, *, add_special_tokens: bool = True, timeout_s: float | None = None
    ) -> Encoded:
        """The ids that the endpoint gives for `prompt`, within `timeout_s` (None, or more than the settings': theirs).

        Chats are sent whole; `add_special_tokens` is for texts. `queue_wait_s` of the result is the time that failed
        attempts took. Raises InvalidRequestError in the endpoint's words for what it refuses, UnsupportedError for what
        its API cannot do, PayloadTooLargeError, OverloadedError and UpstreamError with its kinds. A cancelled call
        gives its connection up.
        """
        bodies = encode_bodies(prompt, model=self._model, add_special_tokens=add_special_tokens, of=self._settings)
        loop = asyncio.get_running_loop()
        asked_s = begun_s = loop.time()

        async def attempt(deadline_s: float) -> TokenizeAnswer:
            nonlocal begun_s
            begun_s = loop.time()
            return await self.encode_once(bodies, deadline_s=deadline_s, is_chat=isinstance(prompt, ChatPrompt))

        answer = await with_retries(
            attempt, timeout_s=self._time_s(timeout_s), pause_s=self._pause_s, on_retry=self._note_retry
        )
        return Encoded(answer.token_ids, "remote", begun_s - asked_s, loop.time() - begun_s)

    async def decode(
        self, token_ids: Sequence[int] | TokenIds, *, skip_special_tokens: bool = False, timeout_s: float | None = None
    ) -> str:
        """The text that the endpoint gives for `token_ids`. Raises as `encode` does."""
        bodies = decode_bodies(token_ids, model=self._model, skip_special_tokens=skip_special_tokens, of=self._settings)

        async def attempt(deadline_s: float) -> str:
            return await self.decode_once(bodies, deadline_s=deadline_s)

        return await with_retries(
            attempt, timeout_s=self._time_s(timeout_s), pause_s=self._pause_s, on_retry=self._note_retry
        )

    async def check_health(self, *, timeout_s: float) -> None:
        """Encode one letter, once. Raises as `encode` does."""
        bodies = encode_bodies(_PROBE_TEXT, model=self._model, add_special_tokens=True, of=self._settings)
        await self.encode_once(bodies, deadline_s=asyncio.get_running_loop().time() + timeout_s, is_chat=False)

    async def encode_once(self, bodies: RequestBodies, *, deadline_s: float, is_chat: bool) -> TokenizeAnswer:
        """One attempt at what `encode_bodies` describes; `deadline_s` is by the loop's clock."""
        body = await self._exchange(self._wire.tokenize_path, bodies, deadline_s=deadline_s, is_chat=is_chat)
        answer = await in_steps(reading_tokens(body))
        self._max_model_len = answer.max_model_len
        return answer

    async def decode_once(self, bodies: RequestBodies, *, deadline_s: float) -> str:
        """One attempt at what `decode_bodies` describes."""
        body = await self._exchange(self._wire.detokenize_path, bodies, deadline_s=deadline_s, is_chat=False)
        return self._wire.read_text(body)

    async def _exchange(self, path: str, bodies: RequestBodies, *, deadline_s: float, is_chat: bool) -> bytes:
        """The body of a good answer."""
        url = self._url + path
        self._num_attempts += 1
        self._num_in_flight += 1
        try:
            async with asyncio.timeout_at(deadline_s):
                answer = await self._transport.post(url, await bodies.body(self._wire))
        except TimeoutError as error:
            raise UpstreamTimeoutError(f"{url} did not answer in time") from error
        finally:
            self._num_in_flight -= 1
        if answer.status != 200:
            retry_after_s = read_retry_after(answer.retry_after, now_unix_s=time.time())
            raise error_of(answer, url=url, is_chat=is_chat, retry_after_s=retry_after_s)
        return answer.body

    def _time_s(self, timeout_s: float | None) -> float:
        longest_s = self._settings.request_timeout_s
        return longest_s if timeout_s is None else min(timeout_s, longest_s)

    def _note_retry(self) -> None:
        self._num_retries += 1

    def statistics(self) -> RemoteTokenizerStatistics:
        return RemoteTokenizerStatistics(
            model=self._model,
            url=self._url,
            num_attempts=self._num_attempts,
            num_retries=self._num_retries,
            num_in_flight=self._num_in_flight,
            max_model_len=self._max_model_len,
        )

    async def aclose(self) -> None:
        """End its own connections; whoever waits gets RemoteClosedError. Idempotent; a given transport is spared."""
        if self._owns_transport:
            await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"RemoteTokenizer({self._model!r} at {self._url}, num_in_flight={self._num_in_flight})"


def encode_bodies(
    prompt: str | ChatPrompt, *, model: str, add_special_tokens: bool, of: RemoteTokenizerSettings
) -> RequestBodies:
    """The bodies that ask for the ids of `prompt`."""
    return RequestBodies(
        lambda wire: wire.tokenize_body(prompt, model=model, add_special_tokens=add_special_tokens),
        max_bytes=of.max_request_bytes,
    )


def decode_bodies(
    token_ids: Sequence[int] | TokenIds, *, model: str, skip_special_tokens: bool, of: RemoteTokenizerSettings
) -> RequestBodies:
    """The bodies that ask for the text of `token_ids`."""
    return RequestBodies(
        lambda wire: wire.detokenize_body(token_ids, model=model, skip_special_tokens=skip_special_tokens),
        max_bytes=of.max_request_bytes,
    )
