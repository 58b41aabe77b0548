"""The parts that know tokens, put together: tokenizers here and at endpoints, who counts with them, and the routes that
are answered with them."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from headrace.gateway.endpoints.endpoint import ServedModel
from headrace.gateway.endpoints.fleet import Fleet
from headrace.gateway.prompt.remote_tokenizers import RemoteTokenizers
from headrace.gateway.prompt.tokenize_routes import TokenizeRoutes
from headrace.gateway.prompt.tokenizers import LoadedTokenizers, ModelTokenizers
from headrace.gateway.prompt.tokens import PromptCounter
from headrace.gateway.settings import GatewaySettings, tokenizer_paths
from headrace.tokenization import TokenizationService
from headrace.tokenization.remote.settings import RemotePoolSettings


class TokenParts:
    """Tells `load_for` of models as they appear; to be closed before the service and the fleet's connections."""

    def __init__(
        self, settings: GatewaySettings, fleet: Fleet, service: TokenizationService, *, registry: CollectorRegistry
    ) -> None:
        self._tokenizers = ModelTokenizers(service, paths=tokenizer_paths(settings.tokenizer_path))
        self.loaded = LoadedTokenizers(service, self._tokenizers)
        self.remote: RemoteTokenizers | None = None
        if settings.tokenizer != "local":
            self.remote = RemoteTokenizers(
                fleet, local=self.loaded, settings=_pool_settings(settings), registry=registry
            )
        self.counter = PromptCounter(
            service,
            self._tokenizers,
            timeout_s=settings.tokenize_timeout_s,
            remote=self.remote,
            mode=settings.tokenizer,
        )
        self.routes = TokenizeRoutes(
            service,
            self._tokenizers,
            timeout_s=settings.tokenize_timeout_s,
            is_on=settings.tokenizer != "remote",
        )

    def load_for(self, models: Mapping[str, ServedModel]) -> None:
        """Begin to load the tokenizers of models that are new."""
        self._tokenizers.load_for(models)

    async def aclose(self) -> None:
        """End what is loading and what is asked. Idempotent."""
        if self.remote is not None:
            await self.remote.aclose()
        await self._tokenizers.aclose()

    def __repr__(self) -> str:
        return f"TokenParts({self._tokenizers!r}, {self.remote!r})"


def _pool_settings(settings: GatewaySettings) -> RemotePoolSettings:
    return RemotePoolSettings(
        enabled=True,
        health_period_s=settings.tokenizer_health_period_s,
        idle_ttl_s=settings.tokenizer_ttl_s,
        max_tokenizers=settings.max_remote_tokenizers,
        parity_share=settings.tokenizer_parity_share,
    )
