"""What differs between /v1/chat/completions and /v1/completions; everything else they share (`generation.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from msgspec import UNSET, UnsetType

from headrace.engine.outputs import CompletionOutput
from headrace.openai.schema.generation import GenerationRequest
from headrace.openai.schema.usage import Usage
from headrace.server.serving import Serving
from headrace.tokenization import TokenIds

RequestT = TypeVar("RequestT", bound=GenerationRequest)

Prompt: TypeAlias = list[int] | TokenIds
"""One prompt as token ids; a list when the client sent them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What every piece of one answer repeats."""

    id: str
    created: int
    model: str


class Chunks(Protocol):
    """Writes the events of one stream. Each method returns whole events, ready to be sent."""

    def opening(self, index: int) -> bytes:
        """What comes before the first text of the choice at `index`; may be nothing."""
        ...

    def text(self, index: int, text: str) -> bytes: ...

    def finish(self, index: int, output: CompletionOutput) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...


class GenerationApi(Protocol[RequestT]):
    """One of the two routes. Stateless."""

    @property
    def id_prefix(self) -> str: ...

    @property
    def prompt_param(self) -> str:
        """The field that holds the prompt, as errors name it."""
        ...

    def decode(self, body: bytes) -> RequestT: ...

    def max_tokens(self, request: RequestT) -> int | None:
        """None is the rest of the model's context."""
        ...

    async def tokenize(self, request: RequestT, serving: Serving) -> Sequence[Prompt]:
        """The token ids of each prompt. Never on the event loop."""
        ...

    def answer(self, head: AnswerHead, outputs: Sequence[CompletionOutput], usage: Usage) -> bytes:
        """The JSON of the whole answer; `outputs` are the finished choices in order."""
        ...

    def chunks(self, head: AnswerHead) -> Chunks: ...


def stop_reason(output: CompletionOutput) -> str | int | UnsetType:
    """The stop string or token id that ended the text; left out of the JSON when it was neither."""
    return UNSET if output.stop_reason is None else output.stop_reason
