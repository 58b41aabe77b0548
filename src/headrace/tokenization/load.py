"""Finds the files of a tokenizer and loads it. Blocking; the service calls it in a thread."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.errors import TokenizationError
from headrace.tokenization.definition import Definition
from headrace.tokenization.hub import fetch_tokenizer, is_hub_name
from headrace.tokenization.tokenizer import Tokenizer

_TOKENIZER_FILE = "tokenizer.json"
_RANKS_SUFFIX = ".tiktoken"
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_tokenizer(path: str | Path, *, offline: bool = False) -> Tokenizer:
    """The tokenizer in `path`: a model's directory, a `tokenizer.json` of any name, a tiktoken rank file of a published
    name (`o200k_base.tiktoken`), or, given as text, a name on the Hugging Face hub.

    A directory's `tokenizer_config.json`, `special_tokens_map.json` and `chat_template.jinja` are read too, and so are
    those beside a file named exactly `tokenizer.json`; any other file stands alone. With `offline` a name on the hub is
    looked for in the local cache only. Raises TokenizationError naming the path.
    """
    found = read_tokenizer(path, offline=offline)
    return found.load() if isinstance(found, Definition) else _load_ranks(found)


def read_tokenizer(path: str | Path, *, offline: bool = False) -> Definition | Path:
    """What `load_tokenizer` makes a tokenizer of, or where that is a rank file its path. Raises as that does."""
    name = str(path)
    if isinstance(path, str) and is_hub_name(path) and not Path(path).exists():
        path = fetch_tokenizer(path, offline=offline)
    path = Path(path)
    if path.suffix == _RANKS_SUFFIX:
        return path
    file = path / _TOKENIZER_FILE if path.is_dir() else path
    raw = _read(file)
    if file.name != _TOKENIZER_FILE:
        return Definition(name=name, tokenizer_json=raw)
    config = _read_object(file.parent / "tokenizer_config.json")
    special_tokens = _special_tokens({**_read_object(file.parent / "special_tokens_map.json"), **config})
    templates = _templates(file.parent, config)
    return Definition(name=name, tokenizer_json=raw, special_tokens=special_tokens, templates=templates)


def _load_ranks(file: Path) -> Tokenizer:
    try:
        from headrace.tokenization.tiktoken_ranks import load_tiktoken
    except ImportError as error:
        raise TokenizationError(f"{file} needs tiktoken, which is not installed") from error
    return load_tiktoken(file)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise TokenizationError(
            f"cannot read the tokenizer {file}: {error.strerror}; give a directory with a {_TOKENIZER_FILE}"
        ) from error


def _read_object(file: Path) -> dict[str, object]:
    """The JSON object in `file`; empty when there is no such file."""
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(_read(file), type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise TokenizationError(f"{file} is not a JSON object: {error}") from error


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """Named special tokens; each is written as its text or as an object that holds it under `content`."""
    found = {name: config.get(name) for name in _NAMED_TOKENS}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _templates(directory: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Chat templates by name. Files win over the configuration, as in transformers."""
    from_files = {
        file.stem: _read_text(file) for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))
    }
    if (default := directory / "chat_template.jinja").is_file():
        from_files["default"] = _read_text(default)
    return from_files or _templates_in(config.get("chat_template"), of=directory / "tokenizer_config.json")


def _read_text(file: Path) -> str:
    try:
        return _read(file).decode()
    except UnicodeDecodeError as error:
        raise TokenizationError(f"{file} is not UTF-8: {error}") from error


def _templates_in(value: object, *, of: Path) -> dict[str, str]:
    """The configuration writes one template as text and several as a list of `{name, template}`."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        named = msgspec.convert(value, type=list[_NamedTemplate])
    except msgspec.ValidationError as error:
        raise TokenizationError(f"chat_template in {of} is neither text nor a list of templates: {error}") from error
    return {entry.name: entry.template for entry in named}


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str
