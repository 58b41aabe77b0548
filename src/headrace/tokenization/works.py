"""What the service has its lanes do. Everything here runs in worker threads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.tokenization.tokenizer import TokenIds, Tokenizer


@dataclass(frozen=True, slots=True)
class EncodeTexts:
    """Texts to token ids. Equal for the same tokenizer and flag, so that such texts share a call."""

    tokenizer: Tokenizer
    add_special_tokens: bool

    def run(self, texts: Sequence[str]) -> list[TokenIds]:
        return self.tokenizer.encode_batch(texts, add_special_tokens=self.add_special_tokens)


@dataclass(frozen=True, slots=True)
class MakeTexts:
    """Calls that make a text: long renderings and decodings. They must bear being called again."""

    def run(self, calls: Sequence[Callable[[], str]]) -> list[str]:
        return [call() for call in calls]
