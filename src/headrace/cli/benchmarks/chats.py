"""Turn 20 of a chat, in the formats of a dozen model families: the part of `headrace bench tokenization` on turns.

Every turn is rendered by its family's template and encoded by the service as it comes; the last one is timed. The other
ways encode the last prompt whole.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.cli.benchmarks.encoding import Encoders
from headrace.cli.benchmarks.rounds import Group, Row, measure
from headrace.cli.benchmarks.templates import TEMPLATES
from headrace.tokenization.chat_template import ChatTemplate

TITLE = "turn 20 of a chat"
_LIBRARY, _ACCELERATED, _SERVICE = "tokenizers.encode", "fastokens", "headrace service"
_SYSTEM_TOKENS = 4000
_USER_TOKENS, _ASSISTANT_TOKENS = 100, 410


class ChatRow(msgspec.Struct, frozen=True, kw_only=True):
    """One family: medians in milliseconds for the last turn's prompt."""

    family: str
    num_tokens: int
    tokenizers_ms: float
    fastokens_ms: float | None
    service_ms: float


class Ratios(msgspec.Struct, frozen=True, kw_only=True):
    """How many times faster the service is: in the family where it is least, and in the middle one."""

    worst: float
    worst_family: str
    median: float


class ChatReport(msgspec.Struct, frozen=True, kw_only=True):
    num_turns: int
    families: list[ChatRow]
    against_tokenizers: Ratios
    against_fastokens: Ratios | None
    """None where fastokens is not there or does not support the tokenizer."""


async def measure_chats(
    encoders: Encoders, families: Sequence[str], *, num_turns: int, num_rounds: int, on_family: Callable[[], None]
) -> ChatReport:
    """Chats in the templates of `families`. Raises DifferentResultError where ids differ."""
    rows = []
    for family in families:
        group = chat_group(encoders, family, ChatTemplate(TEMPLATES[family]), num_turns=num_turns)
        num_tokens = len(encoders.library.encode(group.make_input(0)[-1]).ids)
        measured = await measure(group, num_rounds=num_rounds, on_round=lambda: None)
        rows.append(_chat_row(family, num_tokens, measured))
        on_family()
    return report_of(rows, num_turns=num_turns)


def report_of(rows: Sequence[ChatRow], *, num_turns: int) -> ChatReport:
    return ChatReport(
        num_turns=num_turns,
        families=list(rows),
        against_tokenizers=_ratios({row.family: row.tokenizers_ms / row.service_ms for row in rows}),
        against_fastokens=_ratios(
            {row.family: row.fastokens_ms / row.service_ms for row in rows if row.fastokens_ms is not None}
        )
        if all(row.fastokens_ms is not None for row in rows)
        else None,
    )


def _ratios(by_family: dict[str, float]) -> Ratios:
    worst_family = min(by_family, key=lambda family: by_family[family])
    return Ratios(
        worst=by_family[worst_family], worst_family=worst_family, median=statistics.median(by_family.values())
    )


def _chat_row(family: str, num_tokens: int, measured: Sequence[Row]) -> ChatRow:
    medians = {row.way: row.median for row in measured}
    return ChatRow(
        family=family,
        num_tokens=num_tokens,
        tokenizers_ms=medians[_LIBRARY],
        fastokens_ms=medians.get(_ACCELERATED),
        service_ms=medians[_SERVICE],
    )


def chat_group(encoders: Encoders, family: str, template: ChatTemplate, *, num_turns: int) -> Group:
    ways = encoders.ways()

    async def take_earlier_turns(prompts: list[str]) -> None:
        for prompt in prompts[:-1]:
            await encoders.service_encode(prompt)

    def last_prompt(name: str) -> Callable[[list[str]], Any]:
        return lambda prompts: ways[name](prompts[-1])

    return Group(
        title=family,
        unit="ms",
        make_input=lambda number: prompts_of_turns(
            template, encoders.text_of_tokens, seed=(family, number), num_turns=num_turns
        ),
        ways={name: last_prompt(name) for name in (_LIBRARY, _ACCELERATED, _SERVICE) if name in ways},
        prepare={_SERVICE: take_earlier_turns},
    )


def prompts_of_turns(
    template: ChatTemplate, text_of_tokens: Callable[[object, int], str], *, seed: object, num_turns: int
) -> list[str]:
    """What the model is asked at each turn: a system prompt of 4,000 tokens and all that was said, rendered."""
    messages = [{"role": "system", "content": text_of_tokens((seed, "system"), _SYSTEM_TOKENS)}]
    prompts = []
    for turn in range(num_turns):
        messages.append({"role": "user", "content": text_of_tokens((seed, "user", turn), _USER_TOKENS)})
        prompts.append(template.render(messages))
        messages.append({"role": "assistant", "content": text_of_tokens((seed, turn), _ASSISTANT_TOKENS)})
    return prompts
