"""The paths that the gateway answers itself: /health, and /v1/models from what the endpoints said."""

import itertools
import time
from collections.abc import Callable
from urllib.parse import unquote

import msgspec

from headrace.errors import ModelNotFoundError
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.http.answers import answer_json
from headrace.gateway.http.message import MethodNotAllowedError, Request
from headrace.gateway.http.response_writer import ResponseWriter

_MODELS = "/v1/models"
_MAX_REASONS = 32


class _ModelList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[msgspec.Raw]


class _Health(msgspec.Struct, kw_only=True):
    status: str
    num_healthy: int
    num_endpoints: int
    why_not: dict[str, str] = {}
    """Of endpoints that take no requests, some of them."""


class LocalRoutes:
    """Answers what is about the fleet as a whole."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.is_draining = False
        """Set when the gateway takes no more requests."""

    def answer_health(self, request: Request, client: ResponseWriter) -> bool:
        """Answer the request if its path is /health, which asks for no key; False if it is not.

        Raises MethodNotAllowedError.
        """
        if request.path != "/health":
            return False
        _check_method(request)
        status, body = self.health()
        answer_json(client, body, status=status)
        return True

    def answer_models(self, request: Request, client: ResponseWriter, *, may_use: Callable[[str], bool]) -> bool:
        """Answer the request if it is about models, those that `may_use` lets through; False if it is not.

        Raises MethodNotAllowedError, and ModelNotFoundError for `/v1/models/NAME`.
        """
        path = request.path
        is_model = path.startswith(_MODELS + "/")
        if not is_model and path != _MODELS:
            return False
        _check_method(request)
        if is_model:
            answer_json(client, self._model(unquote(path.removeprefix(_MODELS + "/")), may_use=may_use))
        else:
            data = [served.raw for name, served in self._fleet.models.items() if may_use(name)]
            answer_json(client, msgspec.json.encode(_ModelList(data=data)))
        return True

    def health(self) -> tuple[int, bytes]:
        """Status and body of /health: 200 while at least one endpoint takes requests and the gateway does, else 503."""
        is_ready = self._fleet.num_ready > 0 and not self.is_draining
        why_not = {one.name: one.why_not(now=time.monotonic()) for one in self._fleet.endpoints if not one.is_ready}
        health = _Health(
            status="draining" if self.is_draining else "ok" if is_ready else "no healthy endpoint",
            num_healthy=self._fleet.num_healthy,
            num_endpoints=len(self._fleet.endpoints),
            why_not=dict(itertools.islice(why_not.items(), _MAX_REASONS)),
        )
        return 200 if is_ready else 503, msgspec.json.encode(health)

    def _model(self, name: str, *, may_use: Callable[[str], bool]) -> bytes:
        served = self._fleet.models.get(name) if may_use(name) else None
        if served is None:
            raise ModelNotFoundError(f"The model {name!r} does not exist here.", param="model")
        return bytes(served.raw)


def _check_method(request: Request) -> None:
    if request.method not in {"GET", "HEAD"}:
        raise MethodNotAllowedError(f"{request.path} takes GET, not {request.method}.", allow="GET, HEAD")
