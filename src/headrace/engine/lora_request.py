"""Which LoRA adapter a request uses: vLLM's field names. This module knows no tensors."""

import msgspec

from headrace.errors import InvalidRequestError


class LoRARequest(msgspec.Struct, frozen=True):
    """An adapter in PEFT's format. `lora_int_id` is its identity: two requests with the same id share the adapter.

    Raises InvalidRequestError, naming the field, for an empty name or an id below 1.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    """Directory with adapter_config.json and adapter_model.safetensors."""

    def __post_init__(self) -> None:
        if not self.lora_name:
            raise InvalidRequestError("lora_name is empty; name the adapter", param="lora_name")
        if self.lora_int_id < 1:
            message = f"lora_int_id must be at least 1, got {self.lora_int_id!r}"
            raise InvalidRequestError(message, param="lora_int_id")
        if not self.lora_path:
            raise InvalidRequestError("lora_path is empty; give the adapter's directory", param="lora_path")
