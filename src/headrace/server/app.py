"""The ASGI application of the engine server, assembled as lists. Owns no socket and no engine."""

import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.errors import HeadraceError
from headrace.server.adapters import AdapterModels
from headrace.server.admin import admin_routes
from headrace.server.answers import on_defect, on_headrace_error, on_http_exception
from headrace.server.body_budget import BodyBudgetMiddleware
from headrace.server.chat import ChatApi
from headrace.server.chat_dialect import DialectApi
from headrace.server.completions import CompletionsApi
from headrace.server.embeddings import Embeddings
from headrace.server.engine_seam import Engine
from headrace.server.generate import Generate
from headrace.server.generation import GenerationEndpoint
from headrace.server.lora_routes import load_route, unload_route
from headrace.server.messages import CountTokens, MessagesDialect
from headrace.server.middleware import AuthenticationMiddleware, surrounded
from headrace.server.operations import Operations
from headrace.server.render import Render
from headrace.server.responses import ResponsesDialect
from headrace.server.serving import LiveRequests, Serving
from headrace.server.settings import ServerSettings
from headrace.server.tokenize import Detokenize, Tokenize
from headrace.server.tokenizer_info import TokenizerInfo
from headrace.server.tool_calls import tool_support


async def open_serving(engine: Engine, settings: ServerSettings) -> Serving:
    """What the routes of `build_app` work with. The engine must run already; /metrics shows its registry."""
    model = await engine.get_model_config()
    adapters = AdapterModels(engine, base_model=model.served_model_name, max_adapters=settings.max_lora_modules)
    await adapters.load_modules(settings.lora_modules)
    return Serving(
        engine=engine,
        model=model,
        settings=settings,
        adapters=adapters,
        live=LiveRequests(max_requests=settings.max_concurrent_requests),
        started_at=int(time.time()),
        tools=await tool_support(engine.tokenization, model=model.served_model_name, settings=settings),
    )


def build_app(serving: Serving) -> ASGIApp:
    """Every route and every middleware, outermost first."""
    middleware = [Middleware(BodyBudgetMiddleware, max_bytes=serving.settings.max_total_body_bytes)]
    if serving.settings.api_key:
        middleware.insert(0, Middleware(AuthenticationMiddleware, api_keys=serving.settings.api_key))
    app = Starlette(
        routes=build_routes(serving),
        middleware=middleware,
        exception_handlers={
            HeadraceError: on_headrace_error,
            HTTPException: on_http_exception,
            Exception: on_defect,
        },
    )
    app.router.redirect_slashes = False
    return surrounded(app, serving.settings)


def build_routes(serving: Serving) -> list[Route]:
    operations = Operations(serving)
    return [
        Route("/v1/chat/completions", GenerationEndpoint(ChatApi(), serving), methods=["POST"]),
        Route("/v1/completions", GenerationEndpoint(CompletionsApi(), serving), methods=["POST"]),
        Route("/v1/chat/completions/render", Render(ChatApi(), serving, is_list=False), methods=["POST"]),
        Route("/v1/completions/render", Render(CompletionsApi(), serving, is_list=True), methods=["POST"]),
        Route("/v1/responses", GenerationEndpoint(DialectApi(ResponsesDialect()), serving), methods=["POST"]),
        Route("/v1/messages", GenerationEndpoint(DialectApi(MessagesDialect()), serving), methods=["POST"]),
        Route("/v1/messages/count_tokens", CountTokens(serving), methods=["POST"]),
        Route("/inference/v1/generate", Generate(serving), methods=["POST"]),
        Route("/v1/embeddings", Embeddings(serving), methods=["POST"]),
        Route("/v1/load_lora_adapter", load_route(serving), methods=["POST"]),
        Route("/v1/unload_lora_adapter", unload_route(serving), methods=["POST"]),
        Route("/v1/models", operations.models),
        Route("/v1/models/{model:path}", operations.one_model),
        Route("/tokenize", Tokenize(serving), methods=["POST"]),
        Route("/detokenize", Detokenize(serving), methods=["POST"]),
        Route("/tokenizer_info", TokenizerInfo(serving).get),
        Route("/health", operations.health),
        Route("/ping", operations.health, methods=["GET", "POST"]),
        Route("/load", operations.load),
        Route("/kv_event_sources", operations.kv_event_sources),
        Route("/version", operations.version),
        Route("/metrics", operations.metrics),
        Route("/openapi.json", operations.openapi),
        *admin_routes(serving),
    ]
