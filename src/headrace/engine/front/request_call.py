"""A request as its caller made it, before anything is known of its prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.engine.front.input_processor import Prompt
from headrace.engine.lora_request import LoRARequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCall:
    """What `generate`, `encode` and `add_request` are given beside the params."""

    request_id: str
    prompt: Prompt | None
    prompt_token_ids: Sequence[int] | None = None
    arrival_time: float | None = None
    """Seconds since the epoch; None for now."""
    lora_request: LoRARequest | None = None
    trace_headers: Mapping[str, str] | None = None
    priority: int = 0
