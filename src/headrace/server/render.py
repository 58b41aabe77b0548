"""/v1/chat/completions/render and /v1/completions/render: what a request comes down to, and nothing is generated.

The answer is what /inference/v1/generate takes, so that one server may render and another generate.
"""

import uuid
from functools import partial
from typing import Generic

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.openai.schema.generate import GenerateRequest
from headrace.server.cut import admitted, disconnected, leave_when
from headrace.server.generation import Prepared, prepare
from headrace.server.generation_api import GenerationApi, Prompt, RequestT
from headrace.server.intake import read_body
from headrace.server.serving import Serving
from headrace.server.structured import naming_fields_of
from headrace.server.writer import Writer


class Render(Generic[RequestT]):
    """The ASGI endpoint of one route; `is_list` where a request may have several prompts."""

    def __init__(self, api: GenerationApi[RequestT], serving: Serving, *, is_list: bool) -> None:
        self._api = api
        self._serving = serving
        self._is_list = is_list

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving = self._serving
        async with admitted(serving.live, scope, receive):
            request = self._api.decode(await read_body(scope, receive, serving.settings))
            async with leave_when(partial(disconnected, receive), name="disconnect watch"):
                with naming_fields_of(request, schema_param=self._api.schema_param):
                    prepared = await prepare(self._api, request, serving)
                rendered = [self._rendered(prompt, prepared, request) for prompt in prepared.prompts]
                writer = Writer(send, timeout_s=serving.settings.write_timeout_s)
                await writer.send_json(msgspec.json.encode(rendered if self._is_list else rendered[0]))

    def _rendered(self, prompt: Prompt, prepared: Prepared, request: RequestT) -> GenerateRequest:
        params = prepared.params
        room = self._serving.model.max_model_len - len(prompt)
        sampling_params = msgspec.to_builtins(params, str_keys=True)
        sampling_params["max_tokens"] = room if params.max_tokens is None else params.max_tokens
        sampling_params.pop("output_kind", None)  # whoever generates knows whether it streams
        return GenerateRequest(
            request_id=f"{self._api.id_prefix}-{uuid.uuid4().hex}",
            token_ids=[int(token_id) for token_id in prompt],
            sampling_params=sampling_params,
            model=request.model or self._serving.model.served_model_name,
            stream=bool(request.stream),
            stream_options=request.stream_options,
            priority=request.priority or 0,
            cache_salt=request.cache_salt,
        )
