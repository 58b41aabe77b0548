"""Every answer's `usage` against what was predicted: into the ledger, the metrics and the log."""

import time

from headrace.gateway.choose import Chosen
from headrace.gateway.identify import Call
from headrace.gateway.parity import (
    CachedPrediction,
    Observed,
    ParityLedger,
    compare,
    compare_cached,
    prompt_kind,
    why_uncounted,
)
from headrace.gateway.parity.instruments import ParityInstruments
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.proxy import Answer
from headrace.gateway.token_in.sending import IDS_REFUSED, Sending


class ParityCheck:
    """Looks at answers that are whole and good; others say nothing of a prompt."""

    def __init__(self, ledger: ParityLedger, instruments: ParityInstruments) -> None:
        self._ledger = ledger
        self._instruments = instruments

    def judged(self, call: Call, prompt: PromptCount) -> PromptCount:
        """`prompt`, marked as an estimate while counts of such prompts have been found to differ."""
        return self._ledger.judged(prompt, model=call.model, route=call.route.value, kind=prompt_kind(call))

    def note(self, call: Call, prompt: PromptCount, chosen: Chosen, sending: Sending, *, answer: Answer) -> None:
        """An endpoint has answered."""
        form = "text" if sending.why_text is not None else "ids"
        self._instruments.sent.add(call.model, chosen.endpoint.name, form, sending.why_text or "taken")
        if answer.error is not None or answer.status is None or not 200 <= answer.status < 300:
            return
        if sending.why_text == IDS_REFUSED:
            self._note_refusal(call, chosen)
        is_exact = self._count_prompt(call, prompt, chosen, sending, answer=answer)
        self._count_cached(call, chosen, answer, has_same_prompt=is_exact)

    def _count_prompt(
        self, call: Call, prompt: PromptCount, chosen: Chosen, sending: Sending, *, answer: Answer
    ) -> bool:
        kind = prompt_kind(call)
        reported = answer.usage.prompt_tokens if answer.usage is not None else None
        is_comparable = prompt.total is not None and kind != "truncated"
        comparison = compare(
            predicted=prompt.total if is_comparable else None,
            why_not="truncated" if prompt.total is not None else why_uncounted(call, prompt),
            reported=reported,
        )
        observed = Observed(
            model=call.model,
            endpoint=chosen.endpoint.name,
            route=call.route.value,
            kind=kind,
            comparison=comparison,
            num_prompt_tokens=reported,
            sent_ids=sending.why_text is None,
            could_send_ids=sending.is_candidate,
        )
        self._instruments.count(observed)
        if self._ledger.count(observed, time_s=time.time()) == "demoted":
            self._instruments.demotions.add(observed.model, observed.endpoint, observed.route)
        return comparison.result == "exact"

    def _note_refusal(self, call: Call, chosen: Chosen) -> None:
        """The endpoint took the text of a prompt whose ids it had refused."""
        at = (call.model, chosen.endpoint.name, call.route.value)
        if self._ledger.note_refusal(model=at[0], endpoint=at[1], route=at[2]):
            self._instruments.demotions.add(*at)

    def _count_cached(self, call: Call, chosen: Chosen, answer: Answer, *, has_same_prompt: bool) -> None:
        routed = chosen.routed
        if routed.num_cached_tokens is None:
            return
        predicted = CachedPrediction(
            num_tokens=routed.num_cached_tokens,
            num_stored_tokens=routed.num_stored_tokens,
            block_size=routed.chains[0].block_size if routed.chains else chosen.endpoint.block_size,
        )
        reported = answer.usage.cached_tokens if answer.usage is not None else None
        comparison = compare_cached(predicted, reported=reported, has_same_prompt=has_same_prompt)
        self._ledger.count_cached(call.model, comparison)
        self._instruments.count_cached(call.model, chosen.endpoint.name, comparison)

    def __repr__(self) -> str:
        return f"ParityCheck({self._ledger!r})"
