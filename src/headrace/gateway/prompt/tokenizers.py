"""Which tokenizer counts for which model, and its loading in the background as models appear."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.aio.bridge import make_async
from headrace.aio.tasks import TaskOwner
from headrace.errors import HeadraceError, ModelNotFoundError, TokenizationError
from headrace.gateway.endpoints.endpoint import ModelCard, ServedModel
from headrace.tokenization import ChatPrompt, Encoded, TokenIds, TokenizationService
from headrace.tokenization.hub import fetch_tokenizer, is_hub_name

_LOG = logging.getLogger(__name__)
_MAX_MODELS = 64
_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Found:
    """The tokenizer for a model."""

    name: str
    """What the tokenization service knows it by."""
    why_not: str | None
    """`no_tokenizer` or `tokenizer_load_failed`; None where it can be used."""


class ModelTokenizers:
    """Loads each model's tokenizer once: the operator's `paths` go before what the endpoint names as `root`, which is a
    directory of this machine or a name on the hub whose files are in the local cache. Nothing that an endpoint names is
    downloaded. An adapter counts with the tokenizer of the model that it adapts.

    A model without one is no error; `find` says why it has none.
    """

    def __init__(self, service: TokenizationService, *, paths: Mapping[str | None, Path]) -> None:
        self._service = service
        self._paths = paths
        self._why_not: dict[str, str | None] = {}
        self._parents: dict[str, str] = {}
        """By adapter."""
        self._loading: dict[str, asyncio.Event] = {}
        self._owner = TaskOwner("tokenizer loading")

    async def find(self, model: str) -> Found:
        """The tokenizer of `model`. Waits while it loads; the caller sets the limit."""
        name = self._parents.get(model, model)
        if (loading := self._loading.get(name)) is not None:
            await loading.wait()
        return Found(name, self._why_not.get(name, "no_tokenizer"))

    def find_now(self, model: str) -> Found | None:
        """The tokenizer of `model`; None while it loads."""
        name = self._parents.get(model, model)
        return None if name in self._loading else Found(name, self._why_not.get(name, "no_tokenizer"))

    def load_for(self, models: Mapping[str, ServedModel]) -> None:
        """Begin to load what is new in `models`."""
        for name, served in models.items():
            if self._is_adapter(served.card, models):
                self._parents[name] = str(served.card.parent)
                continue
            self._parents.pop(name, None)
            if name not in self._why_not and len(self._why_not) < _MAX_MODELS:
                self._why_not[name] = "no_tokenizer"
                self._loading[name] = asyncio.Event()
                self._owner.spawn(self._load(served.card), name=f"tokenizer of {name}")
        for name in self._parents.keys() - models.keys():
            del self._parents[name]

    async def aclose(self) -> None:
        """End what is loading. Idempotent."""
        await self._owner.aclose()

    def _is_adapter(self, card: ModelCard, models: Mapping[str, ServedModel]) -> bool:
        """Whether another model's tokenizer is the one for `card`: not if the operator gave it one by name."""
        return card.parent in models and card.parent != card.id and card.id not in self._paths

    async def _load(self, card: ModelCard) -> None:
        try:
            await self._find_and_load(card)
        finally:
            self._loading.pop(card.id).set()

    async def _find_and_load(self, card: ModelCard) -> None:
        path = self._paths.get(card.id, self._paths.get(None))
        if path is None and card.root is not None:
            path = await make_async(_directory_of)(card.root)
        if path is None:
            return
        try:
            await self._service.load(card.id, str(path), keeps_reference=False)
        except HeadraceError as error:
            self._why_not[card.id] = "tokenizer_load_failed"
            _LOG.warning("model %s: no exact token counts: %s", card.id, error.message)
            return
        self._why_not[card.id] = None
        _LOG.info("model %s: tokenizer of %s", card.id, path)

    def __repr__(self) -> str:
        num_ready = sum(why is None for why in self._why_not.values())
        return f"ModelTokenizers(num_ready={num_ready} of {len(self._why_not)}, num_adapters={len(self._parents)})"


class LoadedTokenizers:
    """The tokenization service by the names of models, adapters included. Waits while a tokenizer loads."""

    def __init__(self, service: TokenizationService, tokenizers: ModelTokenizers) -> None:
        self._service = service
        self._tokenizers = tokenizers

    async def encode(self, prompt: str | ChatPrompt, *, model: str, add_special_tokens: bool = True) -> Encoded:
        """See `TokenizationService.encode`. Raises ModelNotFoundError where there is no tokenizer."""
        name = await self._name_of(model)
        return await self._service.encode(prompt, model=name, add_special_tokens=add_special_tokens)

    async def decode(
        self, token_ids: Sequence[int] | TokenIds, *, model: str, skip_special_tokens: bool = False
    ) -> str:
        """See `TokenizationService.decode`. Raises ModelNotFoundError where there is no tokenizer."""
        name = await self._name_of(model)
        return await self._service.decode(token_ids, model=name, skip_special_tokens=skip_special_tokens)

    async def _name_of(self, model: str) -> str:
        found = await self._tokenizers.find(model)
        if found.why_not is not None:
            raise ModelNotFoundError(f"the gateway has no tokenizer for {model!r} ({found.why_not})", param="model")
        return found.name

    def __repr__(self) -> str:
        return f"LoadedTokenizers({self._tokenizers!r})"


def _directory_of(root: str) -> Path | None:
    """Where the tokenizer of the model `root` is on this machine. Blocking."""
    directory = Path(root)
    if not directory.is_absolute():
        if not is_hub_name(root):
            return None
        try:
            directory = fetch_tokenizer(root, offline=True)
        except TokenizationError:
            return None
    return directory if (directory / _FILE).is_file() else None
