"""/tokenizer_info: what the model's tokenizer says of itself, and what we know of it."""

from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.aio.bridge import make_async
from headrace.errors import TokenizationError
from headrace.server.answers import json_response
from headrace.server.serving import Serving
from headrace.tokenization import Tokenizer

_TOKENIZER_FILE = "tokenizer.json"
_CONFIG_FILE = "tokenizer_config.json"


class TokenizerInfo:
    """The fields of the model's tokenizer_config.json, where there is one, as vLLM gives them; ours beside them."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def get(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        tokenizer = self._serving.engine.tokenization.tokenizer(self._serving.model.served_model_name)
        return json_response(await make_async(_described)(tokenizer))


def _described(tokenizer: Tokenizer) -> bytes:
    """Reads a file; never on the event loop."""
    info: dict[str, object] = {"tokenizer_class": type(tokenizer).__name__, **_configured(tokenizer.name)}
    if (template := tokenizer.chat_template) is not None:
        info["chat_template"] = template.sources.get("default") or template.sources
    info["headrace"] = {
        "fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "eos_token_id": tokenizer.eos_token_id,
        "special_token_ids": sorted(tokenizer.special_token_ids),
    }
    return msgspec.json.encode(info)


def _configured(name: str) -> dict[str, object]:
    """Of the directory that the tokenizer was loaded from; empty for one that was loaded otherwise."""
    path = Path(name)
    file = (path.parent if path.name == _TOKENIZER_FILE else path) / _CONFIG_FILE
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError) as error:
        raise TokenizationError(f"{file} cannot be read any more: {error}") from error
