"""Names on the hub, without a network: what is looked for is in the local cache."""

from pathlib import Path

import pytest

from headrace.errors import TokenizationError
from headrace.tokenization import load_tokenizer
from headrace.tokenization.hub import is_hub_name


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("gpt2", True),
        ("owner/name-1.5", True),
        ("/root/model", False),
        ("./model", False),
        ("a/b/c", False),
        ("", False),
    ],
)
def test_names_are_told_from_paths(text: str, is_name: bool) -> None:
    assert is_hub_name(text) is is_name


def test_offline_a_name_that_was_never_fetched_is_named_in_the_error() -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(TokenizationError, match=r"'nobody/nothing-at-all' .* not found in the local cache"):
        load_tokenizer("nobody/nothing-at-all", offline=True)


def test_a_name_that_was_fetched_loads_from_the_cache(
    tmp_path: Path, tiny_tokenizer_json: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[dict[str, object]] = []

    def snapshot_download(name: str, **options: object) -> str:
        asked.append({"name": name, **options})
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    (tmp_path / "tokenizer.json").write_bytes(tiny_tokenizer_json)
    tokenizer = load_tokenizer("owner/name", offline=True)
    assert (tokenizer.name, tokenizer.vocab_size) == ("owner/name", 3)
    assert asked[0]["name"] == "owner/name"
    assert asked[0]["local_files_only"] is True
    assert "tokenizer.json" in asked[0]["allow_patterns"]  # type: ignore[operator]


def test_a_path_object_is_never_looked_for_on_the_hub() -> None:
    with pytest.raises(TokenizationError, match="cannot read the tokenizer gpt2-missing"):
        load_tokenizer(Path("gpt2-missing"))
