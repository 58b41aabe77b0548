"""Sends one request and follows its answer. Knows httpx and the two APIs, not the load."""

import asyncio
import time
from collections.abc import Callable, Mapping

import httpx
import msgspec

from headrace.cli.bench_serve.results import RequestResult
from headrace.cli.bench_serve.settings import LoadSettings
from headrace.cli.bench_serve.workloads import Work
from headrace.errors import SettingsError, UpstreamError, UpstreamProtocolError
from headrace.openai.sse import DONE_DATA, SseDecoder

_MAX_ERROR_CHARS = 300
_POLL_S = 0.2
_PATHS = {"openai-chat": "/v1/chat/completions", "openai": "/v1/completions"}


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None

    @property
    def has_text(self) -> bool:
        if self.delta is not None:
            return bool(self.delta.content or self.delta.reasoning_content or self.delta.tool_calls)
        return bool(self.text)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw | None = None


class _Card(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Card]


_CHUNK = msgspec.json.Decoder(_Chunk)


class LoadClient:
    """One server's client; `aclose` it. `model` is known after `wait_ready`."""

    def __init__(self, settings: LoadSettings, *, now: Callable[[], float] = time.perf_counter) -> None:
        self._settings = settings
        self._now = now
        self._url = settings.base_url.rstrip("/") + _PATHS[settings.backend]
        self._extra = _extra_fields(settings.extra_body)
        self.model = settings.model or ""
        self._http = httpx.AsyncClient(
            headers=settings.headers,
            timeout=httpx.Timeout(None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    async def wait_ready(self) -> None:
        """Until the server lists its models. Raises UpstreamError when it does not in time, or lists none."""
        why = "it did not answer"
        try:
            async with asyncio.timeout(self._settings.ready_timeout_s):
                while True:
                    try:
                        answer = await self._http.get(self._settings.base_url.rstrip("/") + "/v1/models")
                        if answer.status_code == httpx.codes.OK:
                            break
                        why = f"it answered {answer.status_code}: {answer.text[:_MAX_ERROR_CHARS]}"
                        if answer.status_code in {401, 403, 404}:
                            raise UpstreamError(f"{self._settings.base_url}/v1/models: {why}")
                    except httpx.TransportError as error:
                        why = str(error) or type(error).__name__
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            message = f"{self._settings.base_url} was not ready within {self._settings.ready_timeout_s:g} s: {why}"
            raise UpstreamError(message) from error
        self.model = self.model or _first_model(answer.content)

    async def send(self, work: Work, *, late_s: float = 0.0) -> RequestResult:
        """Send it and read the whole answer. A failure stands in the result."""
        result = RequestResult(sent_s=self._now(), late_s=late_s)
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                await self._exchange(self._body(work), result)
        except TimeoutError:
            result.error = f"no end within {self._settings.request_timeout_s:g} s"
        except httpx.TransportError as error:
            result.error = f"{type(error).__name__}: {error}"
        except UpstreamError as error:
            result.error = error.message
        result.ended_s = self._now()
        return result

    async def aclose(self) -> None:
        await self._http.aclose()

    def _body(self, work: Work) -> bytes:
        settings = self._settings
        limit = "max_completion_tokens" if settings.backend == "openai-chat" else "max_tokens"
        body: dict[str, object] = {
            "model": self.model,
            limit: work.num_output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if settings.backend == "openai-chat":
            body["messages"] = [{"role": "user", "content": work.prompt}]
        else:
            body["prompt"] = work.prompt
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode(body | dict(self._extra))

    async def _exchange(self, body: bytes, result: RequestResult) -> None:
        async with self._http.stream("POST", self._url, content=body) as answer:
            result.endpoint = answer.headers.get("x-headrace-endpoint")
            if answer.status_code != httpx.codes.OK:
                text = (await answer.aread()).decode(errors="replace")
                raise UpstreamError(f"status {answer.status_code}: {text[:_MAX_ERROR_CHARS]}")
            decoder, is_done = SseDecoder(), False
            async for data in answer.aiter_bytes():
                now = self._now()
                for event in decoder.feed(data):
                    is_done = is_done or event == DONE_DATA
                    if event != DONE_DATA:
                        _take(event, result, now)
            if not is_done:
                raise UpstreamProtocolError("the stream was cut off before its end")


def _take(event: bytes, result: RequestResult, now: float) -> None:
    try:
        chunk = _CHUNK.decode(event)
    except msgspec.MsgspecError as error:
        raise UpstreamProtocolError(f"the stream has an event that is no chunk: {error}") from error
    if chunk.error is not None:
        raise UpstreamError(f"the stream ended with an error: {bytes(chunk.error).decode()[:_MAX_ERROR_CHARS]}")
    if any(choice.has_text for choice in chunk.choices):
        result.note_text(now)
    if chunk.usage is not None:
        result.num_prompt_tokens = chunk.usage.prompt_tokens
        result.num_output_tokens = chunk.usage.completion_tokens
        details = chunk.usage.prompt_tokens_details
        result.num_cached_tokens = (details.cached_tokens or 0) if details is not None else 0


def _first_model(body: bytes) -> str:
    try:
        models = msgspec.json.decode(body, type=_Models)
    except msgspec.MsgspecError as error:
        raise UpstreamProtocolError(f"/v1/models cannot be read: {error}") from error
    if not models.data:
        raise UpstreamError("the server lists no model; give one with --model")
    return models.data[0].id


def _extra_fields(text: str | None) -> Mapping[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object]) if text else {}
    except msgspec.MsgspecError as error:
        raise SettingsError(f"extra_body {text!r} is no JSON object: {error}", param="extra_body") from error
