"""Every answer's `usage` against what was predicted: into the ledger, the metrics and the log."""

import time

from headrace.errors import ContextLengthError
from headrace.gateway.choose import Chosen
from headrace.gateway.identify import Call
from headrace.gateway.parity import (
    DRIFTING,
    Comparison,
    Observed,
    ParityLedger,
    PromptKind,
    compare,
    compare_cached,
    prompt_kind,
    why_uncounted,
)
from headrace.gateway.parity.comparison import EQUAL
from headrace.gateway.parity.instruments import ParityInstruments
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.proxy import Answer
from headrace.gateway.token_in.sending import IDS_REFUSED, Sending
from headrace.gateway.usage.usage import Usage


class ParityCheck:
    """Looks at answers that are whole and good; others say nothing of a prompt."""

    def __init__(self, ledger: ParityLedger, instruments: ParityInstruments) -> None:
        self._ledger = ledger
        self._instruments = instruments

    def judged(self, call: Call, prompt: PromptCount) -> PromptCount:
        """`prompt`, marked as an estimate while counts of such prompts have been found to differ."""
        model = call.model
        if not self._ledger.is_drifting(model):
            return prompt
        return self._ledger.judged(prompt, model=model, route=call.route.path, kind=prompt_kind(call))

    def too_long(self, call: Call, error: ContextLengthError) -> PromptCount:
        """What is said of a prompt that is surely too long, as counted here: `error`, while such counts agree."""
        if not self._ledger.doubts(model=call.model, route=call.route.path, kind=prompt_kind(call)):
            raise error
        return PromptCount(why=DRIFTING)

    def note(self, call: Call, prompt: PromptCount, chosen: Chosen, sending: Sending, *, answer: Answer) -> None:
        """An endpoint has answered."""
        model, why_text = call.model, sending.why_text
        form = "ids" if why_text is None else "text"
        self._instruments.sent.counts[model, chosen.endpoint.name, form, why_text or "taken"] += 1
        if answer.error is not None or answer.status is None or not 200 <= answer.status < 300:
            return
        if why_text == IDS_REFUSED:
            self._note_refusal(call, chosen)
        is_exact = self._count_prompt(model, call, prompt, chosen, sending, answer.usage)
        if chosen.routed.num_cached_tokens is not None:
            self._count_cached(model, chosen, answer.usage, has_same_prompt=is_exact)

    def _count_prompt(
        self, model: str, call: Call, prompt: PromptCount, chosen: Chosen, sending: Sending, usage: Usage | None
    ) -> bool:
        """Whether the prompt's tokens are as counted here."""
        kind = prompt_kind(call)
        total = prompt.total
        comparison = compare(
            predicted=total if kind != "truncated" else None,
            why_not="truncated" if total is not None else why_uncounted(call, prompt),
            reported=usage.prompt_tokens if usage is not None else None,
        )
        is_exact = comparison is EQUAL
        sent_ids = sending.why_text is None
        if (
            is_exact
            and (sent_ids or not sending.is_candidate)
            and self._ledger.count_equal(model, route=call.route.path, kind=kind, sent_ids=sent_ids)
        ):
            self._instruments.answers.counts[model, chosen.endpoint.name, "exact", kind] += 1
        else:
            self._count(call, chosen, sending, usage, kind=kind, comparison=comparison)
        return is_exact

    def _count(
        self,
        call: Call,
        chosen: Chosen,
        sending: Sending,
        usage: Usage | None,
        *,
        kind: PromptKind,
        comparison: Comparison,
    ) -> None:
        """What is not simply equal, or bears on a verdict."""
        observed = Observed(
            model=call.model,
            endpoint=chosen.endpoint.name,
            route=call.route.path,
            kind=kind,
            comparison=comparison,
            num_prompt_tokens=usage.prompt_tokens if usage is not None else None,
            sent_ids=sending.why_text is None,
            could_send_ids=sending.is_candidate,
        )
        self._instruments.count(observed)
        if self._ledger.count(observed, time_s=time.time()) == "demoted":
            self._instruments.demotions.add(observed.model, observed.endpoint, observed.route)

    def _note_refusal(self, call: Call, chosen: Chosen) -> None:
        """The endpoint took the text of a prompt whose ids it had refused."""
        at = (call.model, chosen.endpoint.name, call.route.path)
        if self._ledger.note_refusal(model=at[0], endpoint=at[1], route=at[2]):
            self._instruments.demotions.add(*at)

    def _count_cached(self, model: str, chosen: Chosen, usage: Usage | None, *, has_same_prompt: bool) -> None:
        routed, endpoint = chosen.routed, chosen.endpoint
        assert routed.num_cached_tokens is not None
        comparison = compare_cached(
            routed.num_cached_tokens,
            num_stored=routed.num_stored_tokens,
            block_size=routed.chains[0].block_size if routed.chains else endpoint.block_size,
            reported=usage.cached_tokens if usage is not None else None,
            has_same_prompt=has_same_prompt,
        )
        self._ledger.count_cached(model, comparison)
        self._instruments.count_cached(model, endpoint.name, comparison)

    def __repr__(self) -> str:
        return f"ParityCheck({self._ledger!r})"
