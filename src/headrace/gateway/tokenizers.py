"""Which tokenizer counts for which model, and its loading in the background as models appear."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from headrace.aio.bridge import make_async
from headrace.aio.tasks import TaskOwner
from headrace.errors import HeadraceError
from headrace.gateway.endpoint import ModelCard, ServedModel
from headrace.tokenization import TokenizationService

_LOG = logging.getLogger(__name__)
_MAX_MODELS = 64


class ModelTokenizers:
    """Loads each model's tokenizer once: the operator's `paths` go before the directory that the endpoint names.

    A model without one is no error; `why_not_ready` says why it has none.
    """

    def __init__(self, service: TokenizationService, *, paths: Mapping[str | None, Path]) -> None:
        self._service = service
        self._paths = paths
        self._why_not: dict[str, str | None] = {}
        self._loading: dict[str, asyncio.Event] = {}
        self._owner = TaskOwner("tokenizer loading")

    async def why_not_ready(self, model: str) -> str | None:
        """None when the service can encode for `model`; else `no_tokenizer` or `tokenizer_load_failed`.

        Waits while it loads; the caller sets the limit.
        """
        if (loading := self._loading.get(model)) is not None:
            await loading.wait()
        return self._why_not.get(model, "no_tokenizer")

    def load_for(self, models: Mapping[str, ServedModel]) -> None:
        """Begin to load what is new in `models`."""
        for name, served in models.items():
            if name not in self._why_not and len(self._why_not) < _MAX_MODELS:
                self._why_not[name] = "no_tokenizer"
                self._loading[name] = asyncio.Event()
                self._owner.spawn(self._load(served.card), name=f"tokenizer of {name}")

    async def aclose(self) -> None:
        """End what is loading. Idempotent."""
        await self._owner.aclose()

    async def _load(self, card: ModelCard) -> None:
        try:
            await self._find_and_load(card)
        finally:
            self._loading.pop(card.id).set()

    async def _find_and_load(self, card: ModelCard) -> None:
        path = self._paths.get(card.id, self._paths.get(None))
        if path is None and card.root is not None and await make_async(_has_tokenizer)(Path(card.root)):
            path = Path(card.root)
        if path is None:
            return
        try:
            await self._service.load(card.id, path)
        except HeadraceError as error:
            self._why_not[card.id] = "tokenizer_load_failed"
            _LOG.warning("model %s: no exact token counts: %s", card.id, error.message)
            return
        self._why_not[card.id] = None
        _LOG.info("model %s: tokenizer of %s", card.id, path)

    def __repr__(self) -> str:
        num_ready = sum(why is None for why in self._why_not.values())
        return f"ModelTokenizers(num_ready={num_ready} of {len(self._why_not)})"


def _has_tokenizer(directory: Path) -> bool:
    return directory.is_absolute() and (directory / "tokenizer.json").is_file()
