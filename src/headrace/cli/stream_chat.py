"""One streaming chat against an OpenAI endpoint, by the standard library's HTTP client: what `headrace demo` shows."""

import contextlib
import http.client
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from headrace.errors import UpstreamError
from headrace.openai.sse import DONE_DATA, SseDecoder

_TIMEOUT_S = 60.0
_READ_BYTES = 65536


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Error(msgspec.Struct):
    message: str


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A finished streaming chat. `first_token_at` is on `time.monotonic`'s clock."""

    text: str
    first_token_at: float
    num_tokens: int
    prompt_tokens_used: int
    prompt_tokens_predicted: int | None
    """What the gateway counted before the engine saw the request."""


def stream_chat(url: str, *, model: str, question: str, on_text: Callable[[str], None]) -> Answer:
    """Ask one question and hand each piece of the answer to `on_text`. Raises UpstreamError if it does not end well."""
    address = urllib.parse.urlsplit(url)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with contextlib.closing(http.client.HTTPConnection(address.netloc, timeout=_TIMEOUT_S)) as connection:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body=msgspec.json.encode(body), headers=headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise UpstreamError(f"{url} answered {response.status}: {response.read().decode(errors='replace')}")
        return _read_answer(response, on_text)


def _read_answer(response: http.client.HTTPResponse, on_text: Callable[[str], None]) -> Answer:
    pieces: list[str] = []
    first_token_at = None
    usage = None
    for chunk in _chunks(response):
        if chunk.error is not None:
            raise UpstreamError(f"the stream ended with an error: {chunk.error.message}")
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.content:
                first_token_at = first_token_at or time.monotonic()
                pieces.append(choice.delta.content)
                on_text(choice.delta.content)
    if first_token_at is None or usage is None:
        raise UpstreamError("the stream ended without an answer and its usage")
    predicted = response.getheader("x-headrace-prompt-tokens")
    return Answer(
        text="".join(pieces),
        first_token_at=first_token_at,
        num_tokens=usage.completion_tokens,
        prompt_tokens_used=usage.prompt_tokens,
        prompt_tokens_predicted=int(predicted) if predicted else None,
    )


def _chunks(response: http.client.HTTPResponse) -> Iterator[_Chunk]:
    decoder = SseDecoder()
    while data := response.read1(_READ_BYTES):
        for event in decoder.feed(data):
            if event == DONE_DATA:
                return
            try:
                yield msgspec.json.decode(event, type=_Chunk)
            except msgspec.DecodeError as error:
                raise UpstreamError(f"the stream has an event that is no chunk: {event!r}") from error
    raise UpstreamError("the stream was cut off before its end")
