"""A request that somebody else is to run: `RequestManager` keeps one for each of its requests."""

from dataclasses import dataclass

from headrace.engine.front.input_processor import Prompt
from headrace.engine.lora_request import LoRARequest
from headrace.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class StreamingRequest:
    """What was asked for, and when."""

    request_id: str
    prompt: Prompt | None
    sampling_params: SamplingParams
    arrival_time: float
    """Seconds since the epoch."""
    lora_request: LoRARequest | None = None
