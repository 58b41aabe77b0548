"""Asks each endpoint what it takes, and whether it makes the same token ids of the same text: once when it is first
well, and again when it has been away, was started anew, or serves other models. Off the path of requests, bounded in
time and bytes, and without a single generated token."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from headrace.aio.bridge import make_async
from headrace.aio.tasks import TaskOwner
from headrace.errors import HeadraceError, UpstreamError
from headrace.gateway.endpoints.endpoint import Endpoint
from headrace.gateway.parity import ParityLedger, Proof
from headrace.gateway.prompt.tokenizers import LoadedTokenizers
from headrace.gateway.routes import Route
from headrace.gateway.token_in.capability import UNKNOWN, Capability, capability_of, engine_kind, read_version
from headrace.gateway.unreadable import UNREADABLE
from headrace.gateway.upstream.fetch import fetch, post
from headrace.tokenization import ChatPrompt

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 5.0
_TOKENIZER_TIMEOUT_S = 60.0
_PAUSES_S = (0.0, 1.0, 5.0)
"""Before each try to ask."""
_MAX_TOKENS_BYTES = 1 << 20
_MAX_MODELS = 64

_TEXT = "Héllo wörld!  1234567,89 don't\n\tdef f(x):\n\n    return x # 你好 مرحبا 🙂"
_CHATS: Sequence[Sequence[dict[str, object]]] = (
    [{"role": "user", "content": _TEXT}],
    [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": " What is 3 plus 4? \n"},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": _TEXT},
    ],
)
_EXAMPLES: Mapping[Route, Sequence[str | ChatPrompt]] = {
    Route.COMPLETIONS: (_TEXT, " What is 3 plus 4? \n"),
    Route.CHAT: tuple(map(ChatPrompt, _CHATS)),
}


class _Card(msgspec.Struct, frozen=True):
    owned_by: str | None = None


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


class CapabilityProbe:
    """Keeps `endpoint.capability` and what the ledger knows of token-in up to date. One task an endpoint, while it is
    asked."""

    def __init__(self, tokenizers: LoadedTokenizers, parity: ParityLedger) -> None:
        self._tokenizers = tokenizers
        self._parity = parity
        self._asking: dict[Endpoint, asyncio.Task[None]] = {}
        self._owner = TaskOwner("capability probes")

    def ask(self, endpoint: Endpoint) -> None:
        """Forget what is known, and ask in the background; until it is known again the endpoint gets text."""
        endpoint.capability = UNKNOWN
        self._parity.forget_endpoint(endpoint.name)
        if (task := self._asking.pop(endpoint, None)) is not None:
            task.cancel()
        task = self._owner.spawn(self._ask(endpoint), name=f"capability of {endpoint.name}")
        self._asking[endpoint] = task

    def follow(self, endpoint: Endpoint) -> None:
        """Nothing yet: it is asked once it is well."""

    async def forget(self, endpoint: Endpoint) -> None:
        """Ask it no more."""
        if (task := self._asking.pop(endpoint, None)) is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])
        self._parity.forget_endpoint(endpoint.name)

    async def aclose(self) -> None:
        """End what is asked. Idempotent."""
        await self._owner.aclose()

    async def _ask(self, endpoint: Endpoint) -> None:
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                capability = await _read_capability(endpoint)
            except (UpstreamError, TimeoutError) as error:
                _LOG.debug("endpoint %s does not say what it takes: %s", endpoint.name, error)
                continue
            endpoint.capability = capability
            _LOG.info("endpoint %s: %s", endpoint.name, _in_words(capability))
            await self._prove(endpoint)
            return

    async def _prove(self, endpoint: Endpoint) -> None:
        """Compare the ids of examples, for each model and route where ids might be sent."""
        if not endpoint.capability.has_tokenize:
            return
        for model in tuple(endpoint.models)[:_MAX_MODELS]:
            for route, examples in _EXAMPLES.items():
                if endpoint.capability.takes_ids_on(route):
                    proof = await self._compare(endpoint, model, examples)
                    self._parity.note_proof(proof, model=model, endpoint=endpoint.name, route=route.value)

    async def _compare(self, endpoint: Endpoint, model: str, examples: Sequence[str | ChatPrompt]) -> Proof:
        try:
            for prompt in examples:
                async with asyncio.timeout(_TOKENIZER_TIMEOUT_S):
                    ours = await self._tokenizers.encode(prompt, model=model)
                theirs = await _tokenize(endpoint, model, prompt)
                if theirs is None:
                    return "untold"
                if theirs != ours.token_ids.tolist():
                    return "differs"
        except (HeadraceError, TimeoutError) as error:
            _LOG.debug("endpoint %s, model %s: token ids are not compared: %s", endpoint.name, model, error)
            return "untold"
        return "equal"

    def __repr__(self) -> str:
        return f"CapabilityProbe(num_asking={len(self._owner)})"


async def _read_capability(endpoint: Endpoint) -> Capability:
    cards = [msgspec.json.decode(served.raw, type=_Card) for served in endpoint.models.values()]
    owned_by = next((card.owned_by for card in cards if card.owned_by), None)
    kind = engine_kind(told=endpoint.spec.engine, owned_by=owned_by)
    version = await fetch(endpoint.pool, "/version", timeout_s=_TIMEOUT_S)
    document = await fetch(endpoint.pool, "/openapi.json", timeout_s=_TIMEOUT_S)
    return await make_async(capability_of)(
        kind,
        version=read_version(version.body) if version.status == 200 else None,
        document=document.body if document.status == 200 else None,
    )


async def _tokenize(endpoint: Endpoint, model: str, prompt: str | ChatPrompt) -> list[int] | None:
    """The ids that the endpoint makes of `prompt`; None where it does not tell."""
    content = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt.messages}
    body = msgspec.json.encode({"model": model, **content})
    async with asyncio.timeout(_TIMEOUT_S):
        answer = await post(endpoint.pool, Route.TOKENIZE.value, body, max_answer_bytes=_MAX_TOKENS_BYTES)
    if answer.status != 200:
        return None
    try:
        return msgspec.json.decode(answer.body, type=_Tokens).tokens
    except UNREADABLE:
        return None


def _in_words(capability: Capability) -> str:
    version = f" {capability.version}" if capability.version else ""
    completions = "completions" if capability.takes_ids else None
    chat = f"chat ({capability.chat_ids_field})" if capability.chat_ids_field else None
    taken = " and ".join(filter(None, (completions, chat)))
    return f"{capability.engine}{version}, takes token ids on {taken or 'no route'}"
