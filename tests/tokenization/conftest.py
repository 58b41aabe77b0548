"""Tokenizer files: a tiny one, and real ones beside the repository, without which their tests are skipped."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from headrace.tokenization import Tokenizer, load_tokenizer

_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@cache
def _load(name: str) -> Tokenizer:
    return load_tokenizer(_DATA / f"{name}_tokenizer.json")


@pytest.fixture(scope="session")
def data_file() -> Callable[[str], Path]:
    def find(name: str) -> Path:
        if not (_DATA / name).is_file():
            pytest.skip(f"the shared data folder with {name} is not beside the repository")
        return _DATA / name

    return find


@pytest.fixture(scope="session")
def tiny_tokenizer_json() -> bytes:
    """A whole `tokenizer.json` of two words and `<|endoftext|>`, whose id is 2."""
    end = {"id": 2, "content": "<|endoftext|>", "special": True, "normalized": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | flags],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"one": 0, "two": 1, "<|endoftext|>": 2}, "unk_token": "one"},
    }
    return json.dumps(spec).encode()


@pytest.fixture(scope="session")
def real_tokenizer(data_file: Callable[[str], Path]) -> Iterator[Callable[[str], Tokenizer]]:
    """The tokenizer of one of the files `NAME_tokenizer.json`, loaded once for the session."""

    def load(name: str) -> Tokenizer:
        data_file(f"{name}_tokenizer.json")
        return _load(name)

    yield load
    _load.cache_clear()
