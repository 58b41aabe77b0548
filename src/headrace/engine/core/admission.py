"""Which requests a core turns away before they are queued, and why. Pure: the texts of refusals, or None."""

from collections.abc import Sequence

from headrace.engine.config import SchedulerConfig
from headrace.engine.core.request import Request


def reason_to_refuse(
    request: Request, config: SchedulerConfig, *, priority: int, num_slots: int, has_adapters: bool
) -> str | None:
    """Why it can never run in an engine whose whole KV cache holds `num_slots` tokens."""
    if priority != 0 and config.policy != "priority":
        return f"priority is {priority}, but this engine schedules fcfs; set scheduling_policy=priority"
    if request.num_prompt_tokens == 0:
        return "the prompt is empty; it must hold at least one token"
    if request.lora is not None and not has_adapters:
        return f"LoRA adapter {request.lora.lora_name!r} was asked for, but adapters are off; set enable_lora"
    if request.pooling is None and request.num_prompt_tokens >= config.max_model_len:
        return (
            f"the prompt has {request.num_prompt_tokens} tokens, which leaves none for the answer in a context of "
            f"{config.max_model_len}; shorten it"
        )
    if request.num_prompt_tokens > num_slots:
        return (
            f"the prompt has {request.num_prompt_tokens} tokens and the whole KV cache holds {num_slots}; shorten it "
            "or raise kv_cache_memory_bytes"
        )
    return None


def reason_to_turn_away(
    request: Request, config: SchedulerConfig, *, waiting: Sequence[Request], num_free_seats: int
) -> str | None:
    """Why it cannot be queued now: too many wait, beyond those that find a seat in the next step."""
    num_queued = len(waiting) - num_free_seats
    if config.max_num_queued_reqs is not None and num_queued >= config.max_num_queued_reqs:
        return f"{len(waiting)} requests wait, as many as max_num_queued_reqs allows; try again later"
    if config.max_num_queued_tokens is None or num_queued < 0:
        return None
    num_tokens = sum(other.num_tokens for other in waiting)
    if num_tokens + request.num_tokens > config.max_num_queued_tokens:
        return (
            f"{num_tokens} prompt tokens wait and max_num_queued_tokens is {config.max_num_queued_tokens}, too few for "
            f"{request.num_tokens} more; try again later"
        )
    return None
