"""What is known of how well our counts agree with those of the engines: per model for limits, per model, route and
endpoint for token-in. Pure but for its log lines: a verdict that changes is told loudly."""

import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.gateway.parity.agreement import AUDIT_EVERY, Agreement, Patience, Proof, TokenInTrust, TrustState
from headrace.gateway.parity.comparison import CachedComparison, Comparison, ParityResult
from headrace.gateway.parity.kind import PromptKind
from headrace.gateway.prompt.tokens import PromptCount

_LOG = logging.getLogger(__name__)
_NUM_EXAMPLES = 20
_MAX_MODELS = 1024
DRIFTING = "drift"
"""Why a count is no longer exact: the engines' counts of such prompts have differed."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, as far as parity looks at it."""

    model: str
    endpoint: str
    route: str
    kind: PromptKind
    comparison: Comparison
    num_prompt_tokens: int | None
    """As the engine reports."""
    sent_ids: bool = False
    could_send_ids: bool = False
    """Whether ids were sent, or text only to have it counted; what never goes as ids says nothing of token-in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftExample:
    """One difference, in numbers."""

    time_s: float
    endpoint: str
    route: str
    kind: str
    num_prompt_tokens: int
    num_tokens_off: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInView:
    """Token-in of one model and route at one endpoint."""

    endpoint: str
    route: str
    state: str
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityStatistics:
    """All comparisons of one model so far."""

    model: str
    num_exact: int
    num_drift: int
    num_not_compared: int
    reasons: dict[str, int]
    cached_causes: dict[str, int]
    """Of cached tokens: whether they were as predicted, and why not."""
    drifting: tuple[str, ...] = ()
    """Routes and kinds of prompts whose counts are estimates now."""
    token_in: tuple[TokenInView, ...] = ()
    examples: tuple[DriftExample, ...] = ()
    """The last differences, the youngest last."""

    @property
    def exact_ratio(self) -> float | None:
        """Exact of all compared; None before the first comparison."""
        num_compared = self.num_exact + self.num_drift
        return self.num_exact / num_compared if num_compared else None


class _OfModel:
    """One model's account."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[ParityResult, str]] = Counter()
        self.cached: Counter[str] = Counter()
        self.agreements: dict[tuple[str, PromptKind], Agreement] = {}
        """By route and kind."""
        self.drifting: set[tuple[str, PromptKind]] = set()
        """Of these, where counts differ now."""
        self.trusts: dict[tuple[str, str], TokenInTrust] = {}
        """By endpoint and route."""
        self.examples: deque[DriftExample] = deque(maxlen=_NUM_EXAMPLES)


class ParityLedger:
    """Counts comparisons and keeps the verdicts. Models are served ones, so few; beyond 1024 the oldest is dropped."""

    def __init__(self, patience: Patience | None = None, *, audit_every: int = AUDIT_EVERY) -> None:
        self._patience = patience or Patience()
        self._audit_every = audit_every
        self._models: dict[str, _OfModel] = {}

    def is_drifting(self, model: str) -> bool:
        """Whether counts of any kind of the model's prompts are estimates now; else `judged` changes nothing."""
        account = self._models.get(model)
        return account is not None and bool(account.drifting)

    def judged(self, prompt: PromptCount, *, model: str, route: str, kind: PromptKind) -> PromptCount:
        """`prompt` as it came while counts of its kind agree; else marked as an estimate, which is over no limit."""
        if prompt.total is None or not self.doubts(model=model, route=route, kind=kind):
            return prompt
        return msgspec.structs.replace(prompt, why=DRIFTING, longest=None)

    def doubts(self, *, model: str, route: str, kind: PromptKind) -> bool:
        """Whether counts of this kind of the model's prompts are estimates now."""
        account = self._models.get(model)
        return account is not None and (route, kind) in account.drifting

    def differs(self, model: str) -> bool:
        """Whether an endpoint has been found to make other tokens of any kind of prompts for `model`."""
        account = self._models.get(model)
        if account is None:
            return False
        return bool(account.drifting) or any(trust.proof == "differs" for trust in account.trusts.values())

    def trust(self, *, model: str, endpoint: str, route: str) -> TokenInTrust:
        """Who decides on token-in there."""
        trusts = self._account(model).trusts
        trust = trusts.get((endpoint, route))
        if trust is None:
            trust = trusts[endpoint, route] = TokenInTrust(self._patience, audit_every=self._audit_every)
        return trust

    def count(self, observed: Observed, *, time_s: float) -> Literal["demoted", "restored"] | None:
        """Add one answer; what became of token-in by it."""
        account = self._account(observed.model)
        comparison = observed.comparison
        account.counts[comparison.result, comparison.reason] += 1
        if comparison.result == "not_compared":
            return None
        is_exact = comparison.result == "exact"
        if not is_exact:
            account.examples.append(_example(observed, time_s=time_s))
        if not observed.sent_ids and observed.kind != "ids":
            self._note_agreement(account, observed, is_exact=is_exact)
        return self._note_trust(observed, is_exact=is_exact) if observed.could_send_ids else None

    def count_equal(self, model: str, *, route: str, kind: PromptKind, sent_ids: bool) -> bool:
        """What `count` does with nearly all answers: equal counts where all is well, of ids that were sent or of text
        that could not have been. False, and nothing counted, where more is at stake: to be told to `count`."""
        account = self._models.get(model)
        if account is None:
            return False
        if not sent_ids:
            agreement = account.agreements.get((route, kind))
            if agreement is None or not agreement.is_exact:
                return False
            agreement.note(is_exact=True)
        account.counts["exact", "equal"] += 1
        return True

    def count_cached(self, model: str, comparison: CachedComparison) -> None:
        """Add one answer's cached tokens."""
        account = self._models.get(model) or self._account(model)
        account.cached[comparison.cause] += 1

    def note_proof(self, proof: Proof, *, model: str, endpoint: str, route: str) -> None:
        """The ids of examples were compared with those of the endpoint's own tokenizer."""
        trust = self.trust(model=model, endpoint=endpoint, route=route)
        if proof == "differs" and trust.proof != "differs":
            _LOG.warning(
                "model %s at %s: its token ids on %s are not those of the tokenizer used here; it gets text",
                *(model, endpoint, route),
            )
        trust.note_proof(proof)

    def note_refusal(self, *, model: str, endpoint: str, route: str) -> bool:
        """An endpoint refused ids and then took the text; whether that demoted it."""
        trust = self.trust(model=model, endpoint=endpoint, route=route)
        if not trust.note(is_exact=False, sent_ids=True):
            return False
        _LOG.error("model %s at %s: demoted from token ids to text on %s, which it refuses", model, endpoint, route)
        return True

    def forget_endpoint(self, endpoint: str) -> None:
        """It was restarted, or is gone: nothing of its token-in holds any more."""
        for account in self._models.values():
            for key in [key for key in account.trusts if key[0] == endpoint]:
                del account.trusts[key]

    def statistics(self) -> tuple[ParityStatistics, ...]:
        return tuple(_statistics_of(model, account) for model, account in sorted(self._models.items()))

    def _account(self, model: str) -> _OfModel:
        account = self._models.get(model)
        if account is None:
            if len(self._models) >= _MAX_MODELS:
                del self._models[next(iter(self._models))]
            account = self._models[model] = _OfModel()
        return account

    def _note_agreement(self, account: _OfModel, observed: Observed, *, is_exact: bool) -> None:
        key = (observed.route, observed.kind)
        if key not in account.agreements:
            account.agreements[key] = Agreement(self._patience)
        if not account.agreements[key].note(is_exact=is_exact):
            return
        if is_exact:
            account.drifting.discard(key)
            _LOG.warning("model %s: counts of %s prompts on %s are exact again", observed.model, *reversed(key))
            return
        account.drifting.add(key)
        _LOG.error(
            "model %s: counts of %s prompts on %s differ from the engine's, last by %d of %d tokens; they are "
            "estimates from now on",
            *(observed.model, observed.kind, observed.route),
            *(-observed.comparison.num_tokens_off, observed.num_prompt_tokens or 0),
        )

    def _note_trust(self, observed: Observed, *, is_exact: bool) -> Literal["demoted", "restored"] | None:
        trust = self.trust(model=observed.model, endpoint=observed.endpoint, route=observed.route)
        if not trust.note(is_exact=is_exact, sent_ids=observed.sent_ids):
            return None
        if trust.state is TrustState.DEMOTED:
            _LOG.error(
                "model %s at %s: demoted from token ids to text on %s, since its counts differ",
                *(observed.model, observed.endpoint, observed.route),
            )
            return "demoted"
        _LOG.warning("model %s at %s: token ids again on %s", observed.model, observed.endpoint, observed.route)
        return "restored"

    def __repr__(self) -> str:
        return f"ParityLedger(num_models={len(self._models)})"


def _example(observed: Observed, *, time_s: float) -> DriftExample:
    return DriftExample(
        time_s=time_s,
        endpoint=observed.endpoint,
        route=observed.route,
        kind=observed.kind,
        num_prompt_tokens=observed.num_prompt_tokens or 0,
        num_tokens_off=observed.comparison.num_tokens_off,
    )


def _statistics_of(model: str, account: _OfModel) -> ParityStatistics:
    per_result: Counter[ParityResult] = Counter()
    reasons: Counter[str] = Counter()
    for (result, reason), count in sorted(account.counts.items()):
        per_result[result] += count
        reasons[reason] += count
    return ParityStatistics(
        model=model,
        num_exact=per_result["exact"],
        num_drift=per_result["drift"],
        num_not_compared=per_result["not_compared"],
        reasons=dict(reasons),
        cached_causes=dict(sorted(account.cached.items())),
        drifting=tuple(f"{route} {kind}" for route, kind in sorted(account.drifting)),
        token_in=_views_of(account.trusts),
        examples=tuple(account.examples),
    )


def _views_of(trusts: Mapping[tuple[str, str], TokenInTrust]) -> tuple[TokenInView, ...]:
    return tuple(
        TokenInView(endpoint=endpoint, route=route, state=trust.state.value, proof=trust.proof)
        for (endpoint, route), trust in sorted(trusts.items())
    )
