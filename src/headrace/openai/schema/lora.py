"""/v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them."""

import msgspec


class LoadLoRAAdapterRequest(msgspec.Struct, kw_only=True):
    lora_name: str
    """The model name under which requests ask for the adapter."""
    lora_path: str
    """Its directory, on the server's machine."""
    load_inplace: bool | None = False
    """Take the place of a loaded adapter of that name."""


class UnloadLoRAAdapterRequest(msgspec.Struct, kw_only=True):
    lora_name: str
    lora_int_id: int | None = None
