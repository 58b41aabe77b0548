"""What differs between /v1/chat/completions and /v1/completions; everything else they share (`generation.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from msgspec import UNSET, UnsetType

from headrace.engine.outputs import CompletionOutput, RequestOutput
from headrace.errors import HeadraceError
from headrace.openai.long_strings import Body
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


@dataclass(frozen=True, slots=True)
class Choice:
    """One completion, or what is new of it, at its place in the answer: prompt after prompt, `n` of each."""

    index: int
    prompt_index: int
    completion: CompletionOutput
    output: RequestOutput
    """What the engine gave it in."""

    @property
    def has_text(self) -> bool:
        """Whether there is any to tell of, or log probabilities of tokens that have none yet."""
        return bool(self.completion.text or self.completion.logprobs)


class Chunks(Protocol):
    """Writes the events of one stream. Each method returns whole events, ready to be sent, or nothing."""

    @property
    def begins_early(self) -> bool:
        """Whether there is something to tell as soon as the engine has the request."""
        ...

    def beginning(self, *, num_prompt_tokens: int, num_cached_tokens: int) -> bytes:
        """What comes before everything else. How much of the prompt was cached is 0 while nobody knows it."""
        ...

    async def opening(self, choice: Choice) -> bytes:
        """What comes before the first text of a choice."""
        ...

    def text(self, choice: Choice) -> bytes:
        """What is new of a choice; called for each output of it, one without text as well."""
        ...

    def finish(self, choice: Choice) -> bytes: ...

    def closing(self, usage: Usage) -> bytes:
        """What ends a stream that is complete."""
        ...

    def failure(self, error: HeadraceError) -> bytes:
        """What ends one that is not."""
        ...


class GenerationApi(Protocol[RequestT]):
    """One of the two routes. Stateless."""

    @property
    def id_prefix(self) -> str: ...

    @property
    def prompt_param(self) -> str:
        """The field that holds the prompt, as errors name it."""
        ...

    @property
    def schema_param(self) -> str:
        """The field that holds the JSON schema of the answer, as errors name it."""
        ...

    def decode(self, body: Body) -> RequestT: ...

    def max_tokens(self, request: RequestT) -> int | None:
        """None is the rest of the model's context."""
        ...

    def logprobs(self, request: RequestT) -> int | None:
        """How many likeliest tokens to tell of at each place; None for no log probabilities. Raises for what does not
        go together."""
        ...

    def prompt_logprobs(self, request: RequestT) -> int | None:
        """The same for the prompt's tokens."""
        ...

    async def tokenize(self, request: RequestT, serving: Serving) -> Sequence[Prompt]:
        """The token ids of each prompt. Never on the event loop."""
        ...

    async def answer(
        self, head: AnswerHead, request: RequestT, choices: Sequence[Choice], usage: Usage, serving: Serving
    ) -> bytes:
        """The JSON of the whole answer; `choices` are the finished ones in order."""
        ...

    def chunks(self, head: AnswerHead, request: RequestT, serving: Serving) -> Chunks: ...


def stop_reason(output: CompletionOutput) -> str | int | UnsetType:
    """The stop string or token id that ended the text; left out of the JSON when it was neither."""
    return UNSET if output.stop_reason is None else output.stop_reason
