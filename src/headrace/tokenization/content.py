"""Counts which content of prompts was known already: system messages, the rest of the conversation, plain texts."""

from headrace.tokenization.chat_messages import num_text_chars
from headrace.tokenization.instruments import Instruments
from headrace.tokenization.prompt import ChatPrompt, Encoded

SYSTEM = "system"
CONVERSATION = "conversation"
OTHER = "other"
"""What a prompt holds beside its system message: a chat, or a text of its own."""
_KNOWN = {"cache": "cached", "flight": "cached"}


def count_content(
    instruments: Instruments, encoded: Encoded, prompt: str | ChatPrompt, *, model: str, num_chars: int
) -> None:
    """Note the `num_chars` characters of `prompt` as cached, resumed or encoded.

    System messages stand first and what was resumed is a beginning, so resumed characters are system content up to its
    size and conversation beyond it.
    """
    whole = _KNOWN.get(encoded.source)
    if isinstance(prompt, str) and not encoded.num_resumed_chars:
        instruments.chars(model=model, content=OTHER, result=whole or "encoded", num_chars=num_chars)
        return
    num_system = min(num_system_chars(prompt), num_chars) if isinstance(prompt, ChatPrompt) else 0
    rest = CONVERSATION if isinstance(prompt, ChatPrompt) else OTHER
    num_resumed = encoded.num_resumed_chars
    parts = (
        (SYSTEM, num_system, min(num_resumed, num_system)),
        (rest, num_chars - num_system, num_resumed - num_system),
    )
    for content, total, resumed in parts:
        known = total if whole else max(0, resumed)
        instruments.chars(model=model, content=content, result=whole or "resumed", num_chars=known)
        instruments.chars(model=model, content=content, result="encoded", num_chars=total - known)


def num_system_chars(prompt: ChatPrompt) -> int:
    """Characters of its system message, where it has one."""
    system = [message for message in prompt.messages[:1] if message.get("role") in {"system", "developer"}]
    return num_text_chars(system)
