"""When differences between our counts and an engine's become a verdict, and when it is lifted. Pure.

Rule 1: one difference is an incident, several are a state. Each weighs one, each equal count in between takes an eighth
of one away, so that a steady share of differences adds up and rare ones are forgotten.
Rule 2: a verdict is lifted only by many equal counts in a row, twice as many after every time that it came back.
Rule 3: a count of token ids that we sent proves nothing when it is equal, for the engine counts what it got.
Token-in itself would thus hide a drift, so it begins with trials and goes on with audits: requests sent as text, to be
counted by the engine.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from headrace.errors import SettingsError

Proof: TypeAlias = Literal["untold", "equal", "differs"]
"""What came of comparing the very ids of an example with the endpoint's own."""

_FORGOTTEN_SHARE = 1 / 8
_NUM_TRIALS = 2
_MAX_EXACT_NEEDED = 100_000
AUDIT_EVERY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How much it takes to change a verdict."""

    num_drifts: int = 3
    num_exact: int = 20

    def __post_init__(self) -> None:
        for name in ("num_drifts", "num_exact"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; give at least 1", param=name)


class Agreement:
    """Whether an engine's counts can be relied on to be ours."""

    __slots__ = ("_num_drifts", "_num_exact_in_a_row", "_num_exact_needed", "_weight", "is_exact")

    def __init__(self, patience: Patience) -> None:
        self._num_drifts = patience.num_drifts
        self._num_exact_needed = patience.num_exact
        self._weight = 0.0
        self._num_exact_in_a_row = 0
        self.is_exact = True

    def note(self, *, is_exact: bool) -> bool:
        """One comparison; whether it changed the verdict."""
        if not is_exact:
            self._num_exact_in_a_row = 0
            self._weight += 1.0
            has_changed = self.is_exact and self._weight >= self._num_drifts
            self.is_exact = self.is_exact and not has_changed
            return has_changed
        self._num_exact_in_a_row += 1
        self._weight = max(0.0, self._weight - _FORGOTTEN_SHARE)
        if self.is_exact or self._num_exact_in_a_row < self._num_exact_needed:
            return False
        self.is_exact, self._weight = True, 0.0
        self._num_exact_needed = min(2 * self._num_exact_needed, _MAX_EXACT_NEEDED)
        return True

    def __repr__(self) -> str:
        return f"Agreement({'exact' if self.is_exact else 'drifting'}, weight={self._weight:g})"


class TrustState(Enum):
    """How far token-in is trusted, of one model and route at one endpoint."""

    UNTRIED = "trial"
    TRUSTED = "trusted"
    DOUBTED = "doubted"
    """One count differed; the next are asked for as text, to know."""
    DEMOTED = "demoted"


class TokenInTrust:
    """Decides for one request after the other whether ids may be sent in place of text."""

    __slots__ = ("_agreement", "_audit_every", "_num_exact_trials", "_num_since_audit", "proof", "state")

    def __init__(self, patience: Patience, *, audit_every: int = AUDIT_EVERY) -> None:
        self._agreement = Agreement(patience)
        self._audit_every = audit_every
        self._num_exact_trials = 0
        self._num_since_audit = 0
        self.proof: Proof = "untold"
        self.state = TrustState.UNTRIED

    def why_text(self) -> str | None:
        """Why the next request must go as text; None: ids may be sent."""
        if self.proof == "differs":
            return "proof_differs"
        if self.state is not TrustState.TRUSTED:
            return str(self.state.value)
        self._num_since_audit += 1
        if self._num_since_audit < self._audit_every:
            return None
        self._num_since_audit = 0
        return "audit"

    def note_proof(self, proof: Proof) -> None:
        """The ids of examples were compared."""
        self.proof = proof
        if proof == "equal" and self.state is TrustState.UNTRIED:
            self.state = TrustState.TRUSTED

    def note(self, *, is_exact: bool, sent_ids: bool) -> bool:
        """One answer's count; whether that demoted or restored token-in."""
        if is_exact and sent_ids:
            return False
        has_changed = self._agreement.note(is_exact=is_exact)
        if not self._agreement.is_exact:
            self.state = TrustState.DEMOTED
        elif not is_exact:
            self._num_exact_trials = 0
            self.state = TrustState.DOUBTED if self.state is TrustState.TRUSTED else self.state
        elif self.state is TrustState.UNTRIED:
            self._num_exact_trials += 1
            self.state = TrustState.TRUSTED if self._num_exact_trials >= _NUM_TRIALS else self.state
        else:
            self.state = TrustState.TRUSTED
        return has_changed

    def __repr__(self) -> str:
        return f"TokenInTrust({self.state.value}, proof={self.proof})"
