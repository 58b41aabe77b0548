"""What operators, probes and gateways ask: /health, /version, /metrics, /v1/models."""

from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace._version import __version__
from headrace.metrics import CONTENT_TYPE, expose
from headrace.openai.schema.models import ModelCard, ModelList
from headrace.server.answers import json_response
from headrace.server.serving import Serving


class Operations:
    """The endpoints that answer at once. An engine that is dead makes /health a 503 that says why."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def health(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        await self._serving.engine.check_health()
        return Response()

    async def version(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        return json_response(msgspec.json.encode({"version": __version__}))

    async def metrics(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        return Response(expose(self._serving.metrics.registry), media_type=CONTENT_TYPE)

    async def models(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        return json_response(msgspec.json.encode(ModelList(data=[self._card()])))

    async def one_model(self, request: Request) -> Response:
        self._serving.check_model(request.path_params["model"])
        return json_response(msgspec.json.encode(self._card()))

    def _card(self) -> ModelCard:
        model = self._serving.model
        return ModelCard(
            id=model.served_model_name,
            created=self._serving.started_at,
            root=str(Path(model.model).absolute()),
            max_model_len=model.max_model_len,
        )
