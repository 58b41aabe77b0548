"""What the service has its lanes do. Everything here runs in worker threads, or in place when it is short."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from headrace.tokenization.segments import MIN_CUT_CHARS, CutRules, no_cuts
from headrace.tokenization.tokenizer import TokenIds, Tokenizer, pack_token_ids

_NO_CUTS = no_cuts("texts are encoded whole")

_CALL_CHARS = 64 * 1024
"""fastokens hands over the ids of so much text within half a millisecond; those of 2 MB took 8 ms, and the whole call
four times as long, since the memory for so many ids is fetched from the system each time."""


# Structs, because making one costs a fifth of making a frozen dataclass.
class TextJob(msgspec.Struct, frozen=True, eq=False):
    """A text to encode; up to the cut `start` its ids are known: `known_ids`, with what goes before every text."""

    text: str
    start: int = 0
    known_ids: TokenIds | None = None
    known_cuts: tuple[tuple[int, int], ...] = ()
    """Cuts up to and with `start`, each with the number of ids before it."""


class EncodedText(msgspec.Struct, frozen=True, eq=False):
    """The ids of a whole text, and the cuts at which they may be taken apart again."""

    token_ids: TokenIds
    cuts: tuple[tuple[int, int], ...] = ()
    """Positions in the text, ascending, each with the number of ids before it."""


@dataclass(frozen=True, slots=True)
class EncodeTexts:
    """Texts to token ids. Equal for the same tokenizer and flag, so that such texts share a call."""

    tokenizer: Tokenizer
    add_special_tokens: bool
    rules: CutRules = _NO_CUTS

    def run(self, jobs: Sequence[TextJob]) -> list[EncodedText]:
        if not self.rules or all(len(job.text) < MIN_CUT_CHARS for job in jobs):
            texts = [job.text for job in jobs]
            encoded = self.tokenizer.encode_batch(texts, add_special_tokens=self.add_special_tokens)
            return [EncodedText(token_ids) for token_ids in encoded]
        plans = [self.rules.plan(job.text, start=job.start) for job in jobs]
        parts = [self.rules.parts(job.text, cuts, start=job.start) for job, cuts in zip(jobs, plans, strict=True)]
        encoded = self._encode([part for of_job in parts for part in of_job])
        results: list[EncodedText] = []
        begin = 0
        for job, cuts in zip(jobs, plans, strict=True):
            end = begin + len(cuts) + 1
            results.append(self._join(job, cuts, encoded[begin:end]))
            begin = end
        return results

    def _encode(self, parts: Sequence[str]) -> list[TokenIds]:
        """Several calls for much text: a call holds the interpreter while it hands over what it made."""
        encoded: list[TokenIds] = []
        begin, num_chars = 0, 0
        for index, part in enumerate(parts):
            num_chars += len(part)
            if num_chars >= _CALL_CHARS or index == len(parts) - 1:
                encoded += self.tokenizer.encode_batch(parts[begin : index + 1], add_special_tokens=False)
                begin, num_chars = index + 1, 0
        return encoded

    def _join(self, job: TextJob, cuts: Sequence[int], parts: Sequence[TokenIds]) -> EncodedText:
        rules = self.rules
        arrays = list(parts)
        if job.known_ids is not None:
            arrays.insert(0, job.known_ids)
        elif self.add_special_tokens and rules.prefix_ids:
            arrays.insert(0, pack_token_ids(rules.prefix_ids))
        num_ids = len(arrays[0]) if len(arrays) > len(parts) else 0
        known = list(job.known_cuts)
        for cut, part in zip(cuts, parts[:-1], strict=True):
            num_ids += len(part)
            known.append((cut, num_ids))
        if self.add_special_tokens and rules.suffix_ids:
            arrays.append(pack_token_ids(rules.suffix_ids))
        token_ids = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        token_ids.flags.writeable = False
        return EncodedText(token_ids, tuple(known))


@dataclass(frozen=True, slots=True)
class MakeTexts:
    """Calls that make a text: long renderings and decodings. They must bear being called again."""

    def run(self, calls: Sequence[Callable[[], str]]) -> list[str]:
        return [call() for call in calls]
