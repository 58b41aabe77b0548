"""Sends an endpoint the token ids that are known here in place of text to tokenize again, where that changes nothing.
Pure: whether ids may be sent is decided by rules and by parity, and the body is spliced, not written anew.

Rule 1: ids stand for the prompt only where the engine would have made the very same of the text. Our own engine renders
by the same code, so all that it takes was counted as it would be. Of others' fields and messages only those are let
through that are known to change no prompt; whatever else a request brings (tools, several parts, template arguments, a
trailing assistant message, a field that we do not know) goes as text.
Rule 2: where an answer repeats or measures the prompt's text (echo, offsets of logprobs), the text is sent.
Rule 3: a chat keeps its messages, for engines read more of them than the prompt.
Rule 4: what a client sends as ids is the client's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np

from headrace.gateway.endpoints.endpoint import Endpoint
from headrace.gateway.identify import Call
from headrace.gateway.parity import ParityLedger
from headrace.gateway.parity.kind import brings_ids, is_given
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.routes import Route
from headrace.gateway.token_in.capability import Capability, ChatIdsField
from headrace.gateway.token_in.ids_json import IdsWriter
from headrace.gateway.unreadable import UNREADABLE

_MAX_TOKENS = 1 << 19
"""Writing more ids would hold the event loop for longer than 5 ms."""
IDS_REFUSED = "ids_refused"
"""Why text is sent for the second time."""
_EXACT = frozenset({"exact", "remote"})
_FALSE = frozenset({b"", b"null", b"false"})


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """A call as it goes to one endpoint."""

    call: Call
    why_text: str | None
    """None: its prompt goes as token ids."""
    is_candidate: bool = False
    """Whether ids could be sent; text goes then only to have the engine count it."""

    @property
    def header(self) -> bytes:
        """What the client is told of it."""
        return b"yes" if self.why_text is None else b"no; " + self.why_text.encode("ascii", "replace")


class _Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of both routes that leave the prompt as it is."""

    model: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    stream_options: msgspec.Raw = msgspec.Raw()
    n: msgspec.Raw = msgspec.Raw()
    temperature: msgspec.Raw = msgspec.Raw()
    top_p: msgspec.Raw = msgspec.Raw()
    top_k: msgspec.Raw = msgspec.Raw()
    min_p: msgspec.Raw = msgspec.Raw()
    presence_penalty: msgspec.Raw = msgspec.Raw()
    frequency_penalty: msgspec.Raw = msgspec.Raw()
    repetition_penalty: msgspec.Raw = msgspec.Raw()
    seed: msgspec.Raw = msgspec.Raw()
    stop: msgspec.Raw = msgspec.Raw()
    stop_token_ids: msgspec.Raw = msgspec.Raw()
    ignore_eos: msgspec.Raw = msgspec.Raw()
    max_tokens: msgspec.Raw = msgspec.Raw()
    min_tokens: msgspec.Raw = msgspec.Raw()
    logit_bias: msgspec.Raw = msgspec.Raw()
    skip_special_tokens: msgspec.Raw = msgspec.Raw()
    spaces_between_special_tokens: msgspec.Raw = msgspec.Raw()
    include_stop_str_in_output: msgspec.Raw = msgspec.Raw()
    response_format: msgspec.Raw = msgspec.Raw()
    structured_outputs: msgspec.Raw = msgspec.Raw()
    priority: msgspec.Raw = msgspec.Raw()
    request_id: msgspec.Raw = msgspec.Raw()
    cache_salt: msgspec.Raw = msgspec.Raw()
    user: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    store: msgspec.Raw = msgspec.Raw()
    service_tier: msgspec.Raw = msgspec.Raw()
    add_special_tokens: msgspec.Raw = msgspec.Raw()


class _PlainCompletion(_Sampling, frozen=True, forbid_unknown_fields=True):
    prompt: msgspec.Raw = msgspec.Raw()
    echo: msgspec.Raw = msgspec.Raw()
    suffix: msgspec.Raw = msgspec.Raw()
    logprobs: msgspec.Raw = msgspec.Raw()


class _TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class _PlainMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message that every renderer reads alike."""

    role: Literal["system", "user", "assistant"]
    content: str | Annotated[list[_TextPart], msgspec.Meta(max_length=1)]
    """Several parts are joined by each renderer in its own way."""


class _PlainChat(_Sampling, frozen=True, forbid_unknown_fields=True):
    messages: list[_PlainMessage] = []
    max_completion_tokens: msgspec.Raw = msgspec.Raw()
    logprobs: msgspec.Raw = msgspec.Raw()
    top_logprobs: msgspec.Raw = msgspec.Raw()
    parallel_tool_calls: msgspec.Raw = msgspec.Raw()


class _OurCompletion(msgspec.Struct, frozen=True):
    """What of a request to our own engine speaks against ids."""

    prompt: msgspec.Raw = msgspec.Raw()
    echo: msgspec.Raw = msgspec.Raw()
    suffix: msgspec.Raw = msgspec.Raw()
    logprobs: msgspec.Raw = msgspec.Raw()


_PLAIN_COMPLETION = msgspec.json.Decoder(_PlainCompletion)
_OUR_COMPLETION = msgspec.json.Decoder(_OurCompletion)
_PLAIN_CHAT = msgspec.json.Decoder(_PlainChat)
_STRINGS = msgspec.json.Decoder(list[str])


class TokenIn:
    """Makes of a call what an endpoint gets. With `is_on` false that is always the call itself."""

    def __init__(self, parity: ParityLedger, *, is_on: bool, min_tokens: int, writer: IdsWriter | None = None) -> None:
        self._parity = parity
        self._is_on = is_on
        self._min_tokens = min_tokens
        self._writer = writer or IdsWriter()

    def prepare(self, call: Call, prompt: PromptCount, endpoint: Endpoint) -> Sending:
        """`call` as it is to be sent to `endpoint`."""
        capability = endpoint.capability
        if (why := self._why_text(call, prompt, capability)) is not None:
            return Sending(call=call, why_text=why)
        body = call.body[0] if len(call.body) == 1 else b"".join(call.body)
        splice = _completion_splice if call.route is Route.COMPLETIONS else _chat_splice
        cut = splice(body, prompt, capability)
        if isinstance(cut, str):
            return Sending(call=call, why_text=cut)
        trust = self._parity.trust(model=call.model, endpoint=endpoint.name, route=call.route.path)
        if (why := trust.why_text()) is not None:
            return Sending(call=call, why_text=why, is_candidate=True)
        ids = self._write(prompt, is_list=cut.is_list)
        parts = (body[: cut.start], cut.opening + ids + cut.closing, body[cut.end :])
        return Sending(call=msgspec.structs.replace(call, body=parts), why_text=None, is_candidate=True)

    def _why_text(self, call: Call, prompt: PromptCount, capability: Capability) -> str | None:
        """What can be said without looking into the body."""
        if not self._is_on:
            return "off"
        if call.route is not Route.CHAT and call.route is not Route.COMPLETIONS:
            return "route"
        if not capability.takes_ids_on(call.route):
            return "not_taken"
        if not prompt.token_ids or prompt.total is None:
            return "no_tokens"
        if prompt.why not in _EXACT:
            return prompt.why
        if prompt.total < self._min_tokens:
            return "short"
        if prompt.total > _MAX_TOKENS:
            return "too_long"
        if brings_ids(call):
            return "ids_given"
        return "truncated" if call.fields.truncate_prompt_tokens is not None else None

    def _write(self, prompt: PromptCount, *, is_list: bool) -> bytes:
        if is_list:
            return self._writer.write_all(prompt.token_ids)
        return self._writer.write(prompt.token_ids[0])

    def __repr__(self) -> str:
        return f"TokenIn({'on' if self._is_on else 'off'}, min_tokens={self._min_tokens})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Where the ids go in a body."""

    start: int
    end: int
    opening: bytes = b""
    closing: bytes = b""
    is_list: bool = False
    """Whether there are several prompts."""


def _completion_splice(body: bytes, prompt: PromptCount, capability: Capability) -> _Cut | str:
    """In place of `prompt`; or why text must be sent."""
    try:
        fields: _OurCompletion | _PlainCompletion = (
            _OUR_COMPLETION if capability.engine == "headrace" else _PLAIN_COMPLETION
        ).decode(body)
        given = bytes(fields.prompt)
        num_given = len(_STRINGS.decode(given)) if given.startswith(b"[") else 1
    except UNREADABLE:
        return "unknown_field"
    if bytes(fields.echo) not in _FALSE:
        return "echo"
    if bytes(fields.logprobs) not in _FALSE:
        return "logprobs"
    if bytes(fields.suffix) not in (b"", b"null", b'""'):
        return "suffix"
    if num_given != len(prompt.token_ids) or not all(map(len, prompt.token_ids)):
        return "prompts_differ"
    start = _offset_of(fields.prompt, body)
    return _Cut(start=start, end=start + len(given), is_list=given.startswith(b"["))


def _chat_splice(body: bytes, prompt: PromptCount, capability: Capability) -> _Cut | str:
    """Behind the last field; or why text must be sent."""
    if len(prompt.token_ids) != 1 or not len(prompt.token_ids[0]):
        return "prompts_differ"
    if capability.engine != "headrace":
        try:
            chat = _PLAIN_CHAT.decode(body)
        except UNREADABLE:
            return "not_plain"
        if not chat.messages or chat.messages[-1].role == "assistant":
            return "continued"
        if is_given(chat.add_special_tokens) and bytes(chat.add_special_tokens) != b"false":
            return "special_tokens"
    end = body.rindex(b"}")
    assert capability.chat_ids_field is not None
    opening, closing = _CHAT_FIELDS[capability.chat_ids_field]
    return _Cut(start=end, end=end, opening=opening, closing=closing)


_CHAT_FIELDS: Mapping[ChatIdsField, tuple[bytes, bytes]] = {
    "prompt_token_ids": (b',"prompt_token_ids":', b""),
    "input_ids": (b',"input_ids":', b""),
    "kv_transfer_params": (b',"kv_transfer_params":{"prompt_token_ids":', b"}"),
}


def _offset_of(value: msgspec.Raw, body: bytes) -> int:
    """Where the value of a member stands in the body that it was decoded from, of which it is a view."""
    start = _address_of(value) - _address_of(body)
    assert body[start : start + len(bytes(value))] == bytes(value)
    return start


def _address_of(data: msgspec.Raw | bytes) -> int:
    address, _ = np.frombuffer(data, dtype=np.uint8).__array_interface__["data"]
    return int(address)
