"""What operators, probes and gateways ask: /health, /ping, /load, /version, /metrics, /kv_event_sources, /v1/models."""

import dataclasses
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace._version import __version__
from headrace.engine.kv_events.config import KVEventsConfig
from headrace.metrics import CONTENT_TYPE, expose
from headrace.openai.schema.models import ModelCard, ModelList
from headrace.server.answers import json_response
from headrace.server.api_table import OPERATIONS
from headrace.server.openapi import openapi_document
from headrace.server.serving import Serving


class Operations:
    """The endpoints that answer at once. An engine that is dead makes /health a 503 that says why."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._openapi = msgspec.json.encode(openapi_document(OPERATIONS))

    async def health(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        await self._serving.engine.check_health()
        return Response()

    async def load(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        """How many requests are being worked on."""
        num_requests = self._serving.live.statistics().num_requests
        return json_response(msgspec.json.encode({"server_load": num_requests}))

    async def kv_event_sources(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        """Where each data-parallel rank publishes what its prefix cache holds; empty where none does."""
        sources = await self._serving.engine.get_kv_event_sources()
        told = {rank: _event_source(source) for rank, source in sources.items()}
        return json_response(msgspec.json.encode(told))

    async def version(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        return json_response(msgspec.json.encode({"version": __version__}))

    async def openapi(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        return json_response(self._openapi)

    async def metrics(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        return Response(expose(self._serving.engine.registry), media_type=CONTENT_TYPE)

    async def models(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        return json_response(msgspec.json.encode(ModelList(data=self._cards())))

    async def one_model(self, request: Request) -> Response:
        asked = request.path_params["model"]
        self._serving.check_model(asked)
        card = next(card for card in self._cards() if card.id == asked)
        return json_response(msgspec.json.encode(card))

    def _cards(self) -> list[ModelCard]:
        """The model's own first, then its adapters'."""
        model = self._serving.model
        base = ModelCard(
            id=model.served_model_name,
            created=self._serving.started_at,
            root=str(Path(model.model).absolute()),
            max_model_len=model.max_model_len,
        )
        adapters = [
            msgspec.structs.replace(base, id=adapter.lora_name, root=adapter.lora_path, parent=base.id)
            for adapter in self._serving.adapters
        ]
        return [base, *adapters]


def _event_source(config: KVEventsConfig) -> dict[str, object]:
    """vLLM's form of it."""
    return {"enable_kv_cache_events": True, **dataclasses.asdict(config)}
