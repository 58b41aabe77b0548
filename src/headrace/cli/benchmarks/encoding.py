"""Groups of `headrace bench tokenization` that encode: fresh text, hits, short prompts and growing documents."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.benchmarks import baselines
from headrace.cli.benchmarks.corpus import mixed_text
from headrace.cli.benchmarks.rounds import Group
from headrace.errors import TokenizationError
from headrace.tokenization.huggingface import HuggingFaceTokenizer
from headrace.tokenization.service import TokenizationService
from headrace.tokenization.tokenizer import Tokenizer

MODEL = "model"
_DOCUMENT_CHARS = 512 * 1024
_GROWTH_CHARS = 800
_SAMPLE_CHARS = 200_000
_HIT_CHARS = 32 * 1024
"""Twice so many bytes at most: mixed text is not all ASCII."""


@dataclass(frozen=True, kw_only=True)
class Encoders:
    """What is compared: two bare libraries, our tokenizers, and the service that has the first as `MODEL`."""

    library: Any
    accelerated: Callable[[str], Any] | None
    tokenizer: Tokenizer
    fastest: Tokenizer
    """The accelerated form of `tokenizer`, or itself: what callers share, so that ways differ and encoders do not."""
    service: TokenizationService
    chars_per_token: float
    """Of mixed text with this tokenizer."""

    @classmethod
    def load(cls, path: Path, *, tokenizer: Tokenizer, service: TokenizationService) -> "Encoders":
        library = baselines.reference_library(path)
        return cls(
            library=library,
            accelerated=baselines.fastokens_encode(path),
            tokenizer=tokenizer,
            fastest=_fastest(tokenizer),
            service=service,
            chars_per_token=_SAMPLE_CHARS / len(library.encode(mixed_text("sample", _SAMPLE_CHARS)).ids),
        )

    def text_of_tokens(self, seed: object, num_tokens: int) -> str:
        """Mixed text of about `num_tokens` tokens, which no other seed gives."""
        return mixed_text(seed, max(1, round(num_tokens * self.chars_per_token)))

    async def library_encode(self, text: str) -> Any:
        return self.library.encode(text).ids

    async def library_encode_fast(self, text: str) -> Any:
        return self.library.encode_batch_fast([text])[0].ids

    async def accelerated_encode(self, text: str) -> Any:
        assert self.accelerated is not None
        return self.accelerated(text)

    async def service_encode(self, text: str) -> Any:
        return (await self.service.encode(text, model=MODEL)).token_ids

    def ways(self) -> dict[str, Callable[[str], Awaitable[Any]]]:
        ways = {"tokenizers.encode": self.library_encode, "tokenizers.encode_batch_fast": self.library_encode_fast}
        if self.accelerated is not None:
            ways["fastokens"] = self.accelerated_encode
        return ways | {"headrace service": self.service_encode}


def _fastest(tokenizer: Tokenizer) -> Tokenizer:
    try:
        return tokenizer.accelerated() if isinstance(tokenizer, HuggingFaceTokenizer) else tokenizer
    except TokenizationError:
        return tokenizer


def encoding_groups(encoders: Encoders, *, is_quick: bool) -> Iterator[Group]:
    ways = encoders.ways()
    sizes = (1000, 8000) if is_quick else (4000, 128_000)
    for num_tokens in sizes:
        yield fresh_text(encoders, num_tokens=num_tokens)
    yield Group(
        title="hit on a long text",
        unit="us",
        make_input=lambda number: mixed_text(("hit", number), _HIT_CHARS),
        ways={name: ways[name] for name in ("tokenizers.encode", "headrace service")},
        prepare={"headrace service": encoders.service_encode},
    )
    yield short_prompts(encoders)
    yield document_group(encoders, num_chars=_DOCUMENT_CHARS // (16 if is_quick else 1))


def fresh_text(encoders: Encoders, *, num_tokens: int) -> Group:
    return Group(
        title=f"fresh text, {num_tokens // 1000}k tokens",
        unit="ms",
        make_input=lambda number: encoders.text_of_tokens(("fresh", number), num_tokens),
        ways=encoders.ways(),
    )


def short_prompts(encoders: Encoders) -> Group:
    """200 prompts of 50 to 2,000 characters one after another: what the service costs beside the bare call."""
    sizes = range(50, 2000, 1950 // 200)
    ways = encoders.ways()

    def each(way: Callable[[str], Awaitable[Any]]) -> Callable[[list[str]], Awaitable[Any]]:
        async def encode(prompts: list[str]) -> Any:
            return [await way(prompt) for prompt in prompts]

        return encode

    return Group(
        title="short prompts, one after another",
        unit="us",
        make_input=lambda number: [mixed_text(("short", number, size), size) for size in sizes],
        ways={name: each(way) for name, way in ways.items()},
        num_operations=len(sizes),
    )


def document_group(encoders: Encoders, *, num_chars: int) -> Group:
    """A document that was encoded and has grown at its end."""

    async def encode_before_growth(text: str) -> None:
        await encoders.service_encode(text[:-_GROWTH_CHARS])

    return Group(
        title=f"{num_chars // 1024}k-character document grown by {_GROWTH_CHARS}",
        unit="ms",
        make_input=lambda number: mixed_text(("document", number), num_chars),
        ways=encoders.ways(),
        prepare={"headrace service": encode_before_growth},
    )
