"""The ASGI application of the engine server, assembled as lists. Owns no socket and no engine."""

import time

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from headrace.errors import HeadraceError
from headrace.server.answers import on_defect, on_headrace_error, on_http_exception
from headrace.server.chat import ChatApi
from headrace.server.completions import CompletionsApi
from headrace.server.engine_seam import Engine
from headrace.server.generation import GenerationEndpoint
from headrace.server.metrics import ServerMetrics
from headrace.server.middleware import AuthenticationMiddleware, RequestIdMiddleware
from headrace.server.operations import Operations
from headrace.server.serving import LiveRequests, Serving
from headrace.server.settings import ServerSettings
from headrace.server.tokenize import Detokenize, Tokenize


async def open_serving(engine: Engine, settings: ServerSettings, *, registry: CollectorRegistry) -> Serving:
    """What the routes of `build_app` work with. The engine must run already; /metrics shows what is in `registry`."""
    model = await engine.get_model_config()
    return Serving(
        engine=engine,
        model=model,
        settings=settings,
        metrics=ServerMetrics(engine, model=model.served_model_name, registry=registry),
        live=LiveRequests(max_requests=settings.max_concurrent_requests),
        started_at=int(time.time()),
    )


def build_app(serving: Serving) -> Starlette:
    """Every route and every middleware, outermost first."""
    operations = Operations(serving)
    routes = [
        Route("/v1/chat/completions", GenerationEndpoint(ChatApi(), serving), methods=["POST"]),
        Route("/v1/completions", GenerationEndpoint(CompletionsApi(), serving), methods=["POST"]),
        Route("/v1/models", operations.models),
        Route("/v1/models/{model:path}", operations.one_model),
        Route("/tokenize", Tokenize(serving), methods=["POST"]),
        Route("/detokenize", Detokenize(serving), methods=["POST"]),
        Route("/health", operations.health),
        Route("/version", operations.version),
        Route("/metrics", operations.metrics),
    ]
    middleware = [Middleware(RequestIdMiddleware)]
    if serving.settings.api_key:
        middleware.append(Middleware(AuthenticationMiddleware, api_keys=serving.settings.api_key))
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            HeadraceError: on_headrace_error,
            HTTPException: on_http_exception,
            Exception: on_defect,
        },
    )
    app.router.redirect_slashes = False
    return app
