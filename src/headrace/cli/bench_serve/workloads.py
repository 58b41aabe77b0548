"""What is sent: for each request its prompt, how many tokens it asks for and, from a trace, when."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from headrace.cli.bench_serve.prompts import PromptMaker
from headrace.cli.bench_serve.settings import DatasetName, LoadSettings
from headrace.errors import InvalidRequestError, SettingsError
from headrace.gateway.simulation import TraceRequest, read_trace

_TRACE_BLOCK_TOKENS = 512
_MIN_SHAREGPT_TOKENS = 4
_LIKE_SHAREGPT = {"prompt": (4.6, 1.4, 1024), "output": (4.9, 1.1, 1024)}
"""Mean and deviation of the logarithm of the lengths, and the longest: round figures near the dataset's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request to send."""

    prompt: str
    num_prompt_tokens: int
    """As meant; the server's usage says what it was."""
    num_output_tokens: int
    at_s: float | None = None
    """Seconds from the start, where the workload knows."""


def make_work(settings: LoadSettings, maker: PromptMaker) -> list[Work]:
    """All requests in order. Raises SettingsError for a file that cannot be read or holds too little."""
    work = [_cut(one, settings.max_output_len) for one in _MAKERS[settings.dataset_name](settings, maker)]
    if not work:
        raise SettingsError(f"{settings.dataset_path} holds no request that can be sent", param="dataset_path")
    return work


def _random(settings: LoadSettings, maker: PromptMaker) -> Iterator[Work]:
    draw = random.Random(f"{settings.seed} lengths")  # noqa: S311 - the same load in every run
    prefix = maker.text("prefix", num_tokens=settings.random_prefix_len)
    for number in range(settings.num_prompts):
        num_own = _around(settings.random_input_len, settings.random_range_ratio, draw)
        yield Work(
            prompt=prefix + maker.text(f"random {number}", num_tokens=num_own),
            num_prompt_tokens=settings.random_prefix_len + num_own,
            num_output_tokens=_around(settings.random_output_len, settings.random_range_ratio, draw),
        )


def _around(mean: int, ratio: float, draw: random.Random) -> int:
    return max(1, draw.randint(round(mean * (1 - ratio)), round(mean * (1 + ratio))))


def _prefix_repetition(settings: LoadSettings, maker: PromptMaker) -> Iterator[Work]:
    draw = random.Random(f"{settings.seed} prefixes")  # noqa: S311 - the same load in every run
    numbers = [number % settings.prefix_repetition_num_prefixes for number in range(settings.num_prompts)]
    draw.shuffle(numbers)
    num_prefix, num_suffix = settings.prefix_repetition_prefix_len, settings.prefix_repetition_suffix_len
    for index, number in enumerate(numbers):
        prefix = maker.text(f"prefix {number}", num_tokens=num_prefix)
        yield Work(
            prompt=prefix + maker.text(f"suffix {index}", num_tokens=num_suffix),
            num_prompt_tokens=num_prefix + num_suffix,
            num_output_tokens=settings.prefix_repetition_output_len,
        )


class _Turn(msgspec.Struct, frozen=True):
    value: str


class _Conversation(msgspec.Struct, frozen=True):
    conversations: list[_Turn]


def _sharegpt(settings: LoadSettings, maker: PromptMaker) -> Iterator[Work]:
    draw = random.Random(f"{settings.seed} conversations")  # noqa: S311 - the same load in every run
    if settings.dataset_path is None:
        yield from _like_sharegpt(settings, maker, draw)
        return
    path = Path(settings.dataset_path)
    try:
        conversations = msgspec.json.decode(path.read_bytes(), type=list[_Conversation])
    except (OSError, msgspec.MsgspecError) as error:
        raise SettingsError(f"dataset_path {str(path)!r} cannot be read: {error}", param="dataset_path") from error
    pairs = [one.conversations[:2] for one in conversations if len(one.conversations) >= 2]
    draw.shuffle(pairs)
    for question, answer in pairs[: settings.num_prompts]:
        num_words = len(answer.value.split())
        num_output = settings.sharegpt_output_len or max(_MIN_SHAREGPT_TOKENS, num_words * 4 // 3)
        num_prompt = max(1, len(question.value.split()) * 4 // 3)
        yield Work(prompt=question.value, num_prompt_tokens=num_prompt, num_output_tokens=num_output)


def _like_sharegpt(settings: LoadSettings, maker: PromptMaker, draw: random.Random) -> Iterator[Work]:
    for number in range(settings.num_prompts):
        num_prompt, num_output = (
            min(longest, max(_MIN_SHAREGPT_TOKENS, round(draw.lognormvariate(mean, deviation))))
            for mean, deviation, longest in _LIKE_SHAREGPT.values()
        )
        yield Work(
            prompt=maker.text(f"conversation {number}", num_tokens=num_prompt),
            num_prompt_tokens=num_prompt,
            num_output_tokens=settings.sharegpt_output_len or num_output,
        )


def _mooncake(settings: LoadSettings, maker: PromptMaker) -> Iterator[Work]:
    for request in _read_trace(Path(settings.dataset_path or ""))[: settings.num_prompts]:
        num_prompt = min(request.input_length, settings.max_prompt_len or request.input_length)
        yield Work(
            prompt=_blocks(request, maker, num_tokens=num_prompt),
            num_prompt_tokens=num_prompt,
            num_output_tokens=max(1, request.output_length),
            at_s=request.timestamp / 1000 / settings.trace_time_scale,
        )


def _read_trace(path: Path) -> Sequence[TraceRequest]:
    try:
        with path.open("rb") as lines:
            return read_trace(lines)
    except OSError as error:
        message = f"dataset_path {str(path)!r} cannot be read: {error.strerror}"
        raise SettingsError(message, param="dataset_path") from error
    except InvalidRequestError as error:
        raise SettingsError(error.message, param="dataset_path") from error


def _blocks(request: TraceRequest, maker: PromptMaker, *, num_tokens: int) -> str:
    """The same text for the same block, wherever it stands."""
    texts, num_left = [], num_tokens
    for block in request.hash_ids:
        if num_left <= 0:
            break
        texts.append(maker.text(f"block {block}", num_tokens=min(num_left, _TRACE_BLOCK_TOKENS)))
        num_left -= _TRACE_BLOCK_TOKENS
    return "".join(texts)


def _cut(work: Work, max_output_len: int | None) -> Work:
    num_tokens = min(work.num_output_tokens, max_output_len or work.num_output_tokens)
    return replace(work, num_output_tokens=num_tokens)


_MAKERS: dict[DatasetName, Callable[[LoadSettings, PromptMaker], Iterator[Work]]] = {
    "random": _random,
    "sharegpt": _sharegpt,
    "prefix_repetition": _prefix_repetition,
    "mooncake": _mooncake,
}
