"""The requests that are measured with: text that no gateway has seen, and exactly how many tokens it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.cli.benchmarks.corpus import mixed_text
from headrace.cli.benchmarks.gateway.job import Template, Work
from headrace.cli.benchmarks.gateway.upstream import answer_of
from headrace.errors import HeadraceError
from headrace.tokenization.load import load_tokenizer
from headrace.tokenization.tokenizer import Tokenizer

MODEL = "bench"
MAX_MODEL_LEN = 262_144
_NUM_WORDS = 4
_WORD_CHARS = 5
_SYSTEM = (
    "You are a patient assistant. Answer in a few sentences, in the language of the question, and say what you know."
)
_PATH = "/v1/chat/completions"


class WorkloadError(HeadraceError):
    """Requests cannot be made from this tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Chats of one kind."""

    num_chats: int
    body_bytes: int
    """Of the first request's JSON, about."""
    num_turns: int = 1
    turn_chars: int = 400
    num_events: int | None = None
    """Of a stream; None for answers in one piece."""
    is_new_each_time: bool = True


class Workload:
    """Makes works for one tokenizer (blocking: it encodes everything)."""

    def __init__(self, tokenizer_path: Path, *, api_keys: Sequence[str]) -> None:
        self._tokenizer = load_tokenizer(tokenizer_path)
        self._words = _equal_words(self._tokenizer)
        self._api_keys = api_keys

    def make(self, name: str, shape: Shape) -> Work:
        """The same for the same name and shape."""
        return Work(
            words=[word.encode() for word in self._words],
            num_words=_NUM_WORDS,
            chats=[
                self._chat(f"{name} {number}", shape, api_key=self._api_keys[number % len(self._api_keys)])
                for number in range(shape.num_chats)
            ],
            is_new_each_time=shape.is_new_each_time,
        )

    def _chat(self, seed: str, shape: Shape, *, api_key: str) -> list[Template]:
        history = [_message("user", _ascii_text(seed, shape.body_bytes - len(_SYSTEM) - 300))]
        templates = []
        for turn in range(shape.num_turns):
            templates.append(self._template(history, shape, api_key=api_key))
            history = [
                *history,
                _message("assistant", _ascii_text(f"{seed} answer {turn}", shape.turn_chars)),
                _message("user", _ascii_text(f"{seed} question {turn}", shape.turn_chars)),
            ]
        return templates

    def _template(self, history: Sequence[dict[str, str]], shape: Shape, *, api_key: str) -> Template:
        words = "".join(self._words[:_NUM_WORDS])
        num_tokens = self._count(history, words)
        if num_tokens != self._count(history, "".join(self._words[-_NUM_WORDS:])):
            raise WorkloadError("the number of tokens depends on which words stand in a prompt; take another tokenizer")
        before, after = self._body(history, num_tokens, shape)
        num_bytes = len(before) + len(words) + len(after)
        head = (
            f"POST {_PATH} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {api_key}\r\n"
            f"content-type: application/json\r\nuser-agent: bench\r\naccept: */*\r\ncontent-length: {num_bytes}\r\n\r\n"
        ).encode()
        answer = b"" if shape.num_events else answer_of(MODEL, num_prompt_tokens=num_tokens)
        return Template(head=head + before, tail=after, answer=answer)

    def _body(self, history: Sequence[dict[str, str]], num_tokens: int, shape: Shape) -> tuple[bytes, bytes]:
        """What stands before the words, and after."""
        mark = "\x00"
        body: dict[str, object] = {"model": MODEL, "messages": _with_words(history, mark)}
        body |= {"max_tokens": shape.num_events or 16, "temperature": 0.7, "seed": num_tokens}
        if shape.num_events:
            body["stream"] = True
        before, _, after = msgspec.json.encode(body).partition(b"\\u0000")
        return before, after

    def _count(self, history: Sequence[dict[str, str]], words: str) -> int:
        template = self._tokenizer.chat_template
        if template is None:
            raise WorkloadError(f"{self._tokenizer.name} has no chat template; take a model that has one")
        return _num_tokens(self._tokenizer, template.render(_with_words(history, words)))


def write(work: Work, path: Path) -> None:
    path.write_bytes(msgspec.msgpack.encode(work))


def _with_words(history: Sequence[dict[str, str]], words: str) -> list[dict[str, object]]:
    """The words stand at the beginning of the first question: behind a preamble that all share, before all else."""
    first = _message("user", f"Note:{words}. " + history[0]["content"])
    return [dict(message) for message in (_message("system", _SYSTEM), first, *history[1:])]


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _ascii_text(seed: str, num_chars: int) -> str:
    """Text whose JSON is about as long as it is."""
    text = mixed_text(seed, num_chars).encode("ascii", "ignore").decode()
    return "I see: " + " ".join(text.split("\n\n"))  # never empty, which some routers refuse


def _equal_words(tokenizer: Tokenizer) -> list[str]:
    """Words of equal length that are one token each behind a space."""
    one = _num_tokens(tokenizer, "Note: a. The")
    found = [f" {word}" for word in _candidates() if _num_tokens(tokenizer, f"Note: {word}. The") == one]
    if len(found) < _NUM_WORDS * 2:
        raise WorkloadError(f"{tokenizer.name} knows too few common words as one token; take another tokenizer")
    return found


def _num_tokens(tokenizer: Tokenizer, text: str) -> int:
    (token_ids,) = tokenizer.encode_batch([text], add_special_tokens=False)
    return len(token_ids)


def _candidates() -> list[str]:
    words = set(mixed_text("words", 400_000).split())
    return sorted(
        word for word in words if len(word) == _WORD_CHARS and word.isascii() and word.islower() and word.isalpha()
    )
