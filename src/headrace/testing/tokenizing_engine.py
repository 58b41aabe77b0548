"""A behaviour of `FakeUpstream`: an engine that counts prompt tokens with a tokenizer of its own, and takes ids.

It knows completions, chats by ids in `prompt_token_ids`, and /tokenize. A `skew` makes its tokenizer differ from the
one that a test gives the gateway.
"""

import json
from collections.abc import Callable, Sequence

from headrace.testing.fake_upstream import DONE, Exchange, chunk_event, completes, usage_event

_NOT_FOUND = 404


class TokenizingEngine:
    """Answers every request with two tokens and the usage that it counted.

    `encode` makes ids of a plain prompt, `render` a plain prompt of messages.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        *,
        render: Callable[[Sequence[dict[str, str]]], str],
        tells_tokens: bool = True,
    ) -> None:
        self._encode = encode
        self._render = render
        self.tells_tokens = tells_tokens
        """Whether there is a /tokenize."""
        self.skew: list[int] = []
        """Ids that it puts before those of every text."""
        self.num_by_text = 0
        self.num_by_ids = 0

    async def __call__(self, exchange: Exchange) -> None:
        fields = exchange.request.json()
        if exchange.request.target == "/tokenize":
            await self._tokenize(exchange, fields)
            return
        num_tokens = len(self._ids_of(fields))
        if not fields.get("stream"):
            await completes("x y", prompt_tokens=num_tokens, completion_tokens=2)(exchange)
            return
        await exchange.start_chunked()
        await exchange.chunk(chunk_event("x y"))
        if _wants_usage(fields):
            await exchange.chunk(usage_event(prompt_tokens=num_tokens, completion_tokens=2))
        await exchange.chunk(DONE)
        await exchange.chunk(b"")

    async def _tokenize(self, exchange: Exchange, fields: dict[str, object]) -> None:
        if not self.tells_tokens:
            await exchange.respond(b"{}", status=_NOT_FOUND)
            return
        ids = self._ids_of_text(fields)
        answer = {"count": len(ids), "max_model_len": 4096, "tokens": ids, "token_strs": None}
        await exchange.respond(json.dumps(answer).encode())

    def _ids_of(self, fields: dict[str, object]) -> list[int]:
        given = fields.get("prompt_token_ids") or fields.get("prompt")
        if isinstance(given, list):
            self.num_by_ids += 1
            return given
        self.num_by_text += 1
        return self._ids_of_text(fields)

    def _ids_of_text(self, fields: dict[str, object]) -> list[int]:
        messages = fields.get("messages")
        text = self._render(messages) if isinstance(messages, list) else str(fields["prompt"])
        return self.skew + self._encode(text)

    def __repr__(self) -> str:
        return f"TokenizingEngine(num_by_text={self.num_by_text}, num_by_ids={self.num_by_ids})"


def _wants_usage(fields: dict[str, object]) -> bool:
    options = fields.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))
