"""Token-in and parity, put together: who asks endpoints what they take, who decides what they get, and who compares
what they answer."""

from headrace.gateway.endpoints.endpoint import Endpoint
from headrace.gateway.identify import Call
from headrace.gateway.parity import ParityLedger, Patience
from headrace.gateway.parity.check import ParityCheck
from headrace.gateway.parity.instruments import ParityInstruments
from headrace.gateway.prompt.tokenizers import LoadedTokenizers
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.settings import GatewaySettings
from headrace.gateway.token_in.capability_probe import CapabilityProbe
from headrace.gateway.token_in.sending import IDS_REFUSED, Sending, TokenIn
from headrace.gateway.usage.stream_usage import ask_usage


class TokenInParts:
    """To be told of endpoints as a companion of theirs, and to be closed before their connections."""

    def __init__(
        self, settings: GatewaySettings, *, tokenizers: LoadedTokenizers, instruments: ParityInstruments
    ) -> None:
        patience = Patience(num_drifts=settings.parity_drifts, num_exact=settings.parity_recovery)
        self.ledger = ParityLedger(patience, audit_every=settings.token_in_audit_every)
        self.check = ParityCheck(self.ledger, instruments)
        self.judged = self.check.judged
        """Marks a prompt's count as an estimate while counts of such prompts have been found to differ."""
        self.too_long = self.check.too_long
        """The same for a prompt that was not counted to its end, being too long already."""
        self.probe = CapabilityProbe(tokenizers, self.ledger)
        is_on = settings.token_in == "auto"  # noqa: S105 - no password
        self._token_in = TokenIn(self.ledger, is_on=is_on, min_tokens=settings.token_in_min_tokens)

    def prepare(self, call: Call, prompt: PromptCount, endpoint: Endpoint) -> Sending:
        """`call` as it is to be sent to `endpoint`. Engines that are known are asked for the usage of every stream, to
        be compared; its client hears of it only if it asked too."""
        if endpoint.capability.engine != "unknown":
            call = ask_usage(call)
        return self._token_in.prepare(call, prompt, endpoint)

    def as_text(self, call: Call, endpoint: Endpoint) -> Sending:
        """`call` for an endpoint that refused it with token ids. The client may be at fault; that its text tells."""
        if endpoint.capability.engine != "unknown":
            call = ask_usage(call)
        return Sending(call=call, why_text=IDS_REFUSED, is_candidate=True)

    async def aclose(self) -> None:
        """End what is asked. Idempotent."""
        await self.probe.aclose()

    def __repr__(self) -> str:
        return f"TokenInParts({self._token_in!r}, {self.ledger!r}, {self.probe!r})"
