"""What a Hugging Face tokenizer is made of, as it was read from its files; small enough to be handed to a process."""

from collections.abc import Mapping

import msgspec

from headrace.tokenization.chat_template import ChatTemplate
from headrace.tokenization.huggingface import HuggingFaceTokenizer


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides ids and renderings."""

    name: str
    """For logs: where it was read."""
    tokenizer_json: bytes
    special_tokens: Mapping[str, str] = {}
    """The named ones, such as `eos_token`."""
    templates: Mapping[str, str] = {}
    """Chat templates by name."""

    def chat_template(self) -> ChatTemplate | None:
        """Raises TokenizationError where a template is not valid."""
        return ChatTemplate(self.templates, special_tokens=self.special_tokens) if self.templates else None

    def load(self) -> HuggingFaceTokenizer:
        """The tokenizer. Blocking, and it holds the interpreter: a second and more for a large vocabulary. Raises
        TokenizationError."""
        return HuggingFaceTokenizer(
            self.tokenizer_json,
            name=self.name,
            special_tokens=self.special_tokens,
            chat_template=self.chat_template(),
        )

    def __repr__(self) -> str:
        return f"Definition({self.name!r}, num_bytes={len(self.tokenizer_json)})"
