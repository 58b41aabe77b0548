"""All endpoints together: which models there are, and who can serve one now."""

from collections.abc import Collection, Iterable

from headrace.errors import OverloadedError
from headrace.gateway.endpoint import Endpoint, ServedModel

_RETRY_AFTER_S = 1.0


class Fleet:
    """The endpoints in a stable order, and the union of their models (the first endpoint's entry counts)."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self.models: dict[str, ServedModel] = {}

    def refresh_models(self) -> None:
        """To be called when the models of an endpoint have changed."""
        models: dict[str, ServedModel] = {}
        for endpoint in self.endpoints:
            models |= {name: served for name, served in endpoint.models.items() if name not in models}
        self.models = models

    @property
    def num_healthy(self) -> int:
        return sum(endpoint.is_healthy for endpoint in self.endpoints)

    def candidates(self, model: str, *, now: float, excluding: Collection[Endpoint] = ()) -> list[Endpoint]:
        """Those that can serve a request for `model` now, in a stable order."""
        return [one for one in self.endpoints if one not in excluding and one.can_take(model, now=now)]

    def unavailable(self, model: str | None, *, now: float) -> OverloadedError:
        """The error that says why nobody can serve `model` (None: nobody is known to serve anything)."""
        concerned = [one for one in self.endpoints if model is None or model in one.models]
        reasons = "; ".join(f"{one.name}: {one.why_not(now=now)}" for one in concerned)
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
