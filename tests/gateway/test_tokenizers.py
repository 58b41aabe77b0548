"""Which tokenizer counts for which model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from headrace.errors import ModelNotFoundError
from headrace.gateway.endpoints.endpoint import ModelCard, ServedModel
from headrace.gateway.prompt.tokenizers import Found, LoadedTokenizers, ModelTokenizers
from headrace.tokenization import TokenizationService, TokenizationSettings

DEMO = Path(__file__).parents[2] / "models" / "demo"


def served(*cards: ModelCard) -> dict[str, ServedModel]:
    return {card.id: ServedModel(card=card, raw=msgspec.Raw(b"{}")) for card in cards}


@asynccontextmanager
async def started(
    *cards: ModelCard, paths: dict[str | None, Path] | None = None
) -> AsyncIterator[tuple[ModelTokenizers, TokenizationService]]:
    async with TokenizationService(TokenizationSettings(encoder="reference")) as service:
        tokenizers = ModelTokenizers(service, paths=paths or {})
        tokenizers.load_for(served(*cards))
        try:
            yield tokenizers, service
        finally:
            await tokenizers.aclose()


BASE = ModelCard(id="base", root=str(DEMO))
ADAPTER = ModelCard(id="lora", root="/adapters/lora", parent="base")


async def test_the_directory_that_an_endpoint_names_is_loaded() -> None:
    async with started(BASE) as (tokenizers, service):
        assert await tokenizers.find("base") == Found("base", None)
        assert service.tokenizer("base").vocab_size > 0


async def test_an_adapter_counts_with_the_tokenizer_of_its_model() -> None:
    async with started(ADAPTER, BASE) as (tokenizers, service):
        assert await tokenizers.find("lora") == Found("base", None)
        encoded = await LoadedTokenizers(service, tokenizers).encode("Hello", model="lora")
        text = await LoadedTokenizers(service, tokenizers).decode(encoded.token_ids, model="lora")

        assert text == "Hello"
        assert service.statistics().num_models == 1


async def test_an_adapter_that_the_operator_gave_a_tokenizer_counts_with_it() -> None:
    async with started(ADAPTER, BASE, paths={"lora": DEMO}) as (tokenizers, _):
        assert await tokenizers.find("lora") == Found("lora", None)


async def test_an_adapter_of_an_unknown_model_has_none() -> None:
    async with started(ADAPTER) as (tokenizers, service):
        assert await tokenizers.find("lora") == Found("lora", "no_tokenizer")
        with pytest.raises(ModelNotFoundError, match="no tokenizer for 'lora'"):
            await LoadedTokenizers(service, tokenizers).encode("Hello", model="lora")


async def test_an_adapter_that_is_gone_is_forgotten() -> None:
    async with started(ADAPTER, BASE) as (tokenizers, _):
        tokenizers.load_for(served(BASE))

        assert await tokenizers.find("lora") == Found("lora", "no_tokenizer")


@pytest.mark.parametrize("root", ["/nowhere", "relative/path/model", "nobody/nothing-at-all", None])
async def test_a_root_that_is_not_on_this_machine_is_no_error(root: str | None) -> None:
    async with started(ModelCard(id="m", root=root)) as (tokenizers, _):
        assert await tokenizers.find("m") == Found("m", "no_tokenizer")


async def test_a_hub_name_whose_files_are_in_the_cache_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[dict[str, object]] = []

    def snapshot_download(name: str, **options: object) -> str:
        asked.append({"name": name, **options})
        return str(DEMO)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    async with started(ModelCard(id="m", root="owner/model")) as (tokenizers, _):
        assert await tokenizers.find("m") == Found("m", None)

    assert (asked[0]["name"], asked[0]["local_files_only"]) == ("owner/model", True)


async def test_a_tokenizer_that_cannot_be_read_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    async with started(ModelCard(id="m", root=str(tmp_path))) as (tokenizers, _):
        assert await tokenizers.find("m") == Found("m", "tokenizer_load_failed")
