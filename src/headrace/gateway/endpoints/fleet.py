"""All endpoints together: which models there are, and who can serve one now."""

from collections.abc import Collection, Iterable

from headrace.errors import OverloadedError
from headrace.gateway.endpoints.endpoint import Endpoint, ServedModel
from headrace.gateway.routes import Route

_RETRY_AFTER_S = 1.0


class Fleet:
    """The endpoints in the order in which they came, and the union of their models (the first endpoint's entry counts).

    `endpoints` is replaced by every change and never changed itself, so whoever goes through it may await.
    """

    def __init__(self, endpoints: Iterable[Endpoint] = ()) -> None:
        self.endpoints = tuple(endpoints)
        self.models: dict[str, ServedModel] = {}

    def add(self, endpoint: Endpoint) -> None:
        """It takes requests as soon as a probe has found it well."""
        assert self.find(endpoint.name) is None, endpoint
        self.endpoints = (*self.endpoints, endpoint)
        self.refresh_models()

    def drain(self, endpoint: Endpoint, why: str) -> None:
        """It gets no more requests; those under way go on, and its models stay known."""
        endpoint.why_draining = why

    def undrain(self, endpoint: Endpoint) -> None:
        """It takes requests again."""
        endpoint.why_draining = None

    def remove(self, endpoint: Endpoint) -> None:
        """It is forgotten, with the models that nobody else serves. What it still has in hand is not touched."""
        self.endpoints = tuple(one for one in self.endpoints if one is not endpoint)
        self.refresh_models()

    def find(self, url: str) -> Endpoint | None:
        """The endpoint of that URL."""
        return next((one for one in self.endpoints if one.name == url), None)

    def refresh_models(self) -> None:
        """To be called when the models of an endpoint have changed."""
        models: dict[str, ServedModel] = {}
        for endpoint in self.endpoints:
            models |= {name: served for name, served in endpoint.models.items() if name not in models}
        self.models = models

    @property
    def num_healthy(self) -> int:
        return sum(endpoint.is_healthy for endpoint in self.endpoints)

    @property
    def num_ready(self) -> int:
        """Those that are well and not drained."""
        return sum(endpoint.is_ready for endpoint in self.endpoints)

    def candidates(
        self, model: str, *, now: float, excluding: Collection[Endpoint] = (), route: Route | None = None
    ) -> list[Endpoint]:
        """Those that can serve a request for `model`, to `route`, now, in a stable order."""
        able = [one for one in self.endpoints if one.can_take(model, now=now)]
        if route is not None and not route.traits.is_everywhere:
            able = [one for one in able if not one.capability.lacks(route)]
        return [one for one in able if one not in excluding] if excluding else able

    def unavailable(self, model: str | None, *, now: float) -> OverloadedError:
        """The error that says why nobody can serve `model` (None: nobody is known to serve anything)."""
        concerned = [one for one in self.endpoints if model is None or model in one.models]
        reasons = "; ".join(f"{one.name}: {one.why_not(now=now)}" for one in concerned) or "there is no endpoint"
        what = f"model {model!r}" if model else "any model"
        return OverloadedError(
            f"No endpoint can serve {what} now ({reasons}). Try again later.",
            code="no_endpoint_available",
            retry_after_s=_RETRY_AFTER_S,
        )

    def __repr__(self) -> str:
        return (
            f"Fleet(num_endpoints={len(self.endpoints)}, num_healthy={self.num_healthy}, num_models={len(self.models)})"
        )
