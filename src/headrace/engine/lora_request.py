"""Which LoRA adapter a request uses: vLLM's field names. This module knows no tensors."""

import msgspec

from headrace.errors import InvalidRequestError

_MAX_ID = 2**63 - 1


class LoRARequest(msgspec.Struct, frozen=True):
    """An adapter in PEFT's format. `lora_int_id` is its identity: two requests with the same id share the adapter.

    Raises InvalidRequestError, naming the field, for an empty name or an id below 1.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    """Directory with adapter_config.json and adapter_model.safetensors."""

    def __post_init__(self) -> None:
        if not isinstance(self.lora_name, str) or not self.lora_name:
            message = f"lora_name must be the adapter's name, got {self.lora_name!r}"
            raise InvalidRequestError(message, param="lora_name")
        is_whole = isinstance(self.lora_int_id, int) and not isinstance(self.lora_int_id, bool)
        if not is_whole or not 1 <= self.lora_int_id <= _MAX_ID:
            message = f"lora_int_id must be a whole number, at least 1, got {self.lora_int_id!r}"
            raise InvalidRequestError(message, param="lora_int_id")
        if not isinstance(self.lora_path, str) or not self.lora_path:
            message = f"lora_path must be the adapter's directory, got {self.lora_path!r}"
            raise InvalidRequestError(message, param="lora_path")
