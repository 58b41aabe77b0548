"""Drives an engine core step by step in a test, and checks what must hold after every one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.engine.core.engine_core import EngineCore
from headrace.engine.core.request import pack_token_ids
from headrace.engine.lora_request import LoRARequest
from headrace.engine.pooling_params import PoolingParams
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.wire.messages import AddRequest, TokenDelta

GREEDY = SamplingParams(temperature=0.0, max_tokens=None)


def add_request(
    request_id: str,
    prompt: Sequence[int],
    *,
    params: SamplingParams = GREEDY,
    max_tokens: int = 16,
    stop_token_ids: tuple[int, ...] = (),
    priority: int = 0,
    arrival_time: float = 0.0,
    pooling_params: PoolingParams | None = None,
    lora: LoRARequest | None = None,
) -> AddRequest:
    """The message that the front end would send."""
    return AddRequest(
        request_id=request_id,
        prompt=pack_token_ids(list(prompt)),
        sampling_params=params,
        max_tokens=max_tokens,
        stop_token_ids=stop_token_ids,
        arrival_time=arrival_time,
        priority=priority,
        pooling_params=pooling_params,
        lora=lora,
    )


@dataclass(slots=True)
class CoreDriver:
    """Collects the deltas of `core`. Asserts its integrity after every step, and that each request ends once."""

    core: EngineCore
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, TokenDelta] = field(default_factory=dict)

    def add(self, request: AddRequest) -> None:
        self.tokens[request.request_id] = []
        self.core.add_request(request)

    def abort(self, *request_ids: str) -> None:
        self._take(self.core.abort(request_ids))

    def step(self) -> tuple[TokenDelta, ...]:
        deltas = self.core.step()
        self._take(deltas)
        return deltas

    def run(self) -> dict[str, list[int]]:
        """Step until nothing is left; the tokens of all requests so far."""
        while self.core.has_work():
            self.step()
        assert self.ends.keys() == self.tokens.keys(), "a request did not end"
        return self.tokens

    def _take(self, deltas: tuple[TokenDelta, ...]) -> None:
        for delta in deltas:
            assert delta.request_id not in self.ends, f"{delta.request_id} went on after its end"
            self.tokens[delta.request_id] += delta.new_token_ids
            if delta.finish_reason is not None:
                self.ends[delta.request_id] = delta
        self.core.check_integrity()
