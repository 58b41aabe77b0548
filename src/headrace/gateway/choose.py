"""The step between tokens and an endpoint: who can take the call, whom the router chooses of them, and what is learnt
when it answers."""

from collections.abc import Mapping

import msgspec

from headrace.errors import HeadraceError
from headrace.gateway.endpoints.endpoint import Endpoint
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.http.message import RouteNotFoundError
from headrace.gateway.identify import Call
from headrace.gateway.prefix_index import ChainHashers
from headrace.gateway.prompt.blocks import PromptBlocks
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.router import Routed, Router
from headrace.gateway.routing import PolicyName
from headrace.gateway.usage.usage import Usage

_BY_PROMPT = frozenset({"prefix", "prefix_hash"})


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """One choice, for one attempt."""

    endpoint: Endpoint
    reason: str
    routed: Routed
    prompt: PromptBlocks
    policy: PolicyName


class Chooser:
    """Chooses for calls. Whoever is given a choice reserves load on its endpoint before anybody else asks."""

    def __init__(self, fleet: Fleet, router: Router, hashers: ChainHashers, *, session_header: str) -> None:
        self._fleet = fleet
        self._router = router
        self._hashers = hashers
        self._session_header = session_header.lower().encode("latin-1")
        self._policy: PolicyName = router.policy.name
        self.policy_name = self._policy.encode("ascii")

    def prompt_of(self, call: Call, count: PromptCount) -> PromptBlocks:
        """The prompt to choose by, for all attempts of a call."""
        return PromptBlocks(
            call,
            count,
            hashers=self._hashers,
            session_header=self._session_header,
            hashes_text=self._policy in _BY_PROMPT,
        )

    def choose(self, call: Call, prompt: PromptBlocks, failures: Mapping[Endpoint, str], *, now: float) -> Chosen:
        """An endpoint that has not failed yet. Raises OverloadedError when there is none, and RouteNotFoundError when
        none has such a route."""
        candidates = self._fleet.candidates(call.model, now=now, excluding=failures, route=call.route)
        if not candidates:
            raise self._why_none(call, failures, now=now)
        routed = self._router.choose(prompt, candidates, now=now)
        by_text = "; by text" if prompt.is_text and len(candidates) > 1 else ""
        retry = f"; retry {len(failures)} after {next(reversed(list(failures))).name} failed" if failures else ""
        return Chosen(
            endpoint=candidates[routed.index],
            reason=routed.reason + by_text + retry,
            routed=routed,
            prompt=prompt,
            policy=self._policy,
        )

    def _why_none(self, call: Call, failures: Mapping[Endpoint, str], *, now: float) -> HeadraceError:
        if self._fleet.candidates(call.model, now=now, excluding=failures):
            return RouteNotFoundError(f"No endpoint that serves the model {call.model!r} has {call.route.value}.")
        return self._fleet.unavailable(call.model, now=now)

    def note_answering(self, chosen: Chosen, *, status: int, now: float) -> None:
        """The endpoint has begun to answer; when it answers well, it has the prompt in its cache."""
        if 200 <= status < 300:
            self._router.note_answering(chosen.routed, now=now)

    def note_usage(self, chosen: Chosen, usage: Usage | None) -> None:
        """The endpoint has said what it had in its cache, if it does."""
        if usage is not None and usage.cached_tokens is not None:
            self._router.note_cached_tokens(chosen.routed, usage.cached_tokens)

    def __repr__(self) -> str:
        return f"Chooser({self._router!r})"
