"""What is asked of an examiner, and what it answers: msgpack in the frames of `processes.wire`. Pure."""

import re
from typing import TypeAlias

import msgspec
import numpy as np

from headrace.tokenization.admission import EncoderChoice
from headrace.tokenization.compare import Check, Finding
from headrace.tokenization.definition import Definition
from headrace.tokenization.segments import CutRules
from headrace.tokenization.tokenizer import Tokenizer


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Cut rules on their way."""

    pattern: str | None
    num_dropped: int
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    reason: str

    @classmethod
    def of(cls, rules: CutRules) -> "Rules":
        return cls(
            pattern=None if rules.pattern is None else rules.pattern.pattern,
            num_dropped=rules.num_dropped,
            prefix_ids=rules.prefix_ids,
            suffix_ids=rules.suffix_ids,
            reason=rules.reason,
        )

    def made(self) -> CutRules:
        return CutRules(
            pattern=None if self.pattern is None else re.compile(self.pattern),
            num_dropped=self.num_dropped,
            prefix_ids=self.prefix_ids,
            suffix_ids=self.suffix_ids,
            reason=self.reason,
        )


class Admit(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Which shortcuts may the tokenizer take? The answers are `Facts`, at once, and the `Verdict`."""

    definition: Definition
    choice: EncoderChoice
    uses_cuts: bool


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A `compare.Check` on its way."""

    text: str
    token_ids: bytes
    """Unsigned 32-bit integers in the machine's byte order."""
    is_accelerated: bool
    rules: Rules
    add_special_tokens: bool

    @classmethod
    def of(cls, check: Check) -> "Result":
        return cls(
            text=check.text,
            token_ids=check.token_ids.tobytes(),
            is_accelerated=check.encoder is not check.reference,
            rules=Rules.of(check.rules),
            add_special_tokens=check.add_special_tokens,
        )

    def made(self, *, reference: Tokenizer, encoder: Tokenizer) -> Check:
        return Check(
            text=self.text,
            token_ids=np.frombuffer(self.token_ids, np.uint32),
            reference=reference,
            encoder=encoder if self.is_accelerated else reference,
            rules=self.rules.made(),
            add_special_tokens=self.add_special_tokens,
        )


class Compare(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Have these results the reference's ids? The answer is `Compared`."""

    definition: Definition
    results: list[Result]


class Facts(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What a tokenizer says of itself."""

    fingerprint: str
    vocab_size: int
    eos_token_id: int | None
    max_token_bytes: int
    special_token_ids: frozenset[int]
    added_tokens: tuple[str, ...]
    rules: Rules


class Verdict(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An `admission.Admission`; its encoder is made anew where it is to serve."""

    is_accelerated: bool
    encoder_reason: str
    rules: Rules


class Compared(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One for each result, in order; None: it has the reference's ids."""

    findings: list[Finding | None]


class Refused(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """There is no such tokenizer: what loading it raised."""

    message: str


Question: TypeAlias = Admit | Compare
Answer: TypeAlias = Facts | Verdict | Compared | Refused
