"""/v1/load_lora_adapter and /v1/unload_lora_adapter: adapters come and go while the server runs.

A path on the server's machine is taken from a request here, so both are refused unless the operator allows them.
"""

from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.errors import UnsupportedError
from headrace.openai.decode import RequestDecoder
from headrace.openai.schema.lora import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest
from headrace.server.adapters import AdapterModels
from headrace.server.cut import admitted
from headrace.server.intake import read_body
from headrace.server.serving import Serving
from headrace.server.writer import Writer

_RequestT = TypeVar("_RequestT", bound=msgspec.Struct)
_RequestT_contra = TypeVar("_RequestT_contra", bound=msgspec.Struct, contravariant=True)


class Act(Protocol[_RequestT_contra]):
    """What a route does with its request; the sentence that answers it."""

    async def __call__(self, request: _RequestT_contra, adapters: AdapterModels, /) -> str: ...


class LoRARoute(Generic[_RequestT]):
    """One of the two routes. A client that leaves does not undo what it asked for."""

    def __init__(self, serving: Serving, request_type: type[_RequestT], act: Act[_RequestT]) -> None:
        self._serving = serving
        self._decoder = RequestDecoder(request_type, unbuilt={})
        self._act = act

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving = self._serving
        async with admitted(serving.live, scope, receive):
            request = self._decoder.decode(await read_body(scope, receive, serving.settings))
            if not serving.settings.allow_runtime_lora:
                message = (
                    "this server does not load or unload LoRA adapters on request; start it with allow_runtime_lora"
                )
                raise UnsupportedError(message, param="allow_runtime_lora")
            text = await self._act(request, serving.adapters)
            writer = Writer(send, timeout_s=serving.settings.write_timeout_s)
            body = text.encode()
            await writer.start({"content-type": "text/plain; charset=utf-8", "content-length": str(len(body))})
            await writer.end(body)


def load_route(serving: Serving) -> LoRARoute[LoadLoRAAdapterRequest]:
    return LoRARoute(serving, LoadLoRAAdapterRequest, _load)


def unload_route(serving: Serving) -> LoRARoute[UnloadLoRAAdapterRequest]:
    return LoRARoute(serving, UnloadLoRAAdapterRequest, _unload)


async def _load(request: LoadLoRAAdapterRequest, adapters: AdapterModels, /) -> str:
    await adapters.load(request.lora_name, request.lora_path, is_replacement=bool(request.load_inplace))
    return f"Success: LoRA adapter '{request.lora_name}' added successfully."


async def _unload(request: UnloadLoRAAdapterRequest, adapters: AdapterModels, /) -> str:
    await adapters.unload(request.lora_name)
    return f"Success: LoRA adapter '{request.lora_name}' removed successfully."
