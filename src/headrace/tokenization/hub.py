"""Finds a tokenizer by its name on the Hugging Face hub: fetches the few small files it needs, or takes them from the
local cache. Only this module knows huggingface_hub, which is loaded on first use and keeps its own settings."""

import re
from pathlib import Path

from headrace.errors import TokenizationError

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_TIMEOUT_S = 10.0


def is_hub_name(text: str) -> bool:
    """Whether `text` can be `name` or `owner/name` on the hub."""
    return _NAME.fullmatch(text) is not None


def fetch_tokenizer(name: str, *, offline: bool) -> Path:
    """The directory with the files of the tokenizer `name`. Blocking; `offline` looks in the local cache only.

    Raises TokenizationError naming `name`.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise TokenizationError(
            f"the tokenizer {name!r} is not a local path, and huggingface_hub, which would find it, is not installed"
        ) from error
    try:
        directory = snapshot_download(
            name, allow_patterns=list(_FILES), local_files_only=offline, etag_timeout=_TIMEOUT_S
        )
    except Exception as error:  # the library raises its own, those of its HTTP client, and ValueError
        where = "in the local cache" if offline else "on the Hugging Face hub"
        raise TokenizationError(
            f"the tokenizer {name!r} is not a local path and was not found {where}: {error}"
        ) from error
    return Path(directory)
