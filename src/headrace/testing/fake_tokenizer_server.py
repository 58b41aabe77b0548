"""Fakes of vLLM's and SGLang's `/tokenize` and `/detokenize`: on a real socket, and in memory for virtual time.

Both answer strictly: a field that the engine would not read is refused, so that a client's slip shows. Faults are
queued by the test and answer one request each.
"""

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from headrace.errors import HeadraceError, InvalidRequestError, UpstreamConnectError
from headrace.testing.fake_upstream import Behaviour, Exchange, FakeUpstream, Received
from headrace.tokenization.byte_tokenizer import ByteTokenizer
from headrace.tokenization.remote.settings import RemoteEngine
from headrace.tokenization.remote.transport import RemoteAnswer, RemoteClosedError
from headrace.tokenization.tokenizer import Tokenizer

_TEXT_FIELDS = {"model", "prompt", "add_special_tokens"}
_CHAT_FIELDS = {"model", "messages", "continue_final_message", "tools", "chat_template_kwargs"}
_VLLM_CHAT_FIELDS = _CHAT_FIELDS | {"add_generation_prompt", "add_special_tokens"}


@dataclass(slots=True, kw_only=True)
class FakeTokenizerApi:
    """What an engine answers."""

    engine: RemoteEngine = "vllm"
    tokenizer: Tokenizer = field(default_factory=ByteTokenizer)
    model: str = "demo"
    max_model_len: int = 4096

    def answer(self, path: str, request: dict[str, object]) -> tuple[int, dict[str, object]]:
        """Status and body."""
        if request.get("model") != self.model:
            return 404, _error(f"The model `{request.get('model')}` does not exist.", code=404)
        try:
            if path == "/tokenize":
                return 200, self._tokenize(request)
            if path == "/detokenize":
                return 200, self._detokenize(request)
        except InvalidRequestError as error:
            return 400, _error(error.message, param=error.param, code=400)
        return 404, {"detail": "Not Found"}

    def _tokenize(self, request: dict[str, object]) -> dict[str, object]:
        if "messages" in request:
            text, adds = self._render(request), False
        else:
            _refuse_unknown(request, _TEXT_FIELDS)
            prompt = request["prompt"]
            assert isinstance(prompt, str)
            text, adds = prompt, self.engine == "sglang" or request.get("add_special_tokens", True) is True
        (token_ids,) = self.tokenizer.encode_batch([text], add_special_tokens=adds)
        return {"count": len(token_ids), "max_model_len": self.max_model_len, "tokens": token_ids.tolist()}

    def _render(self, request: dict[str, object]) -> str:
        """SGLang opens the assistant's turn unless the final message is to be continued."""
        _refuse_unknown(request, _VLLM_CHAT_FIELDS if self.engine == "vllm" else _CHAT_FIELDS)
        continues = request.get("continue_final_message", False) is True
        opens = not continues if self.engine == "sglang" else request.get("add_generation_prompt", True) is True
        messages, tools, kwargs = (request.get(name) for name in ("messages", "tools", "chat_template_kwargs"))
        assert isinstance(messages, list)
        assert tools is None or isinstance(tools, list)
        assert kwargs is None or isinstance(kwargs, dict)
        assert self.tokenizer.chat_template is not None
        return self.tokenizer.chat_template.render(
            messages,
            tools=tools,
            add_generation_prompt=opens,
            continue_final_message=continues,
            template_kwargs=kwargs,
        )

    def _detokenize(self, request: dict[str, object]) -> dict[str, object]:
        token_ids = request["tokens"]
        assert isinstance(token_ids, list)
        if self.engine == "vllm":
            _refuse_unknown(request, {"model", "tokens"})
            return {"prompt": self.tokenizer.decode(token_ids, skip_special_tokens=False)}
        _refuse_unknown(request, {"model", "tokens", "skip_special_tokens"})
        skips = request.get("skip_special_tokens", True) is True
        return {"text": self.tokenizer.decode(token_ids, skip_special_tokens=skips)}


class FakeTokenizerServer:
    """`async with FakeTokenizerServer() as server:` answers at `server.url`. With `api_key`, others get 401."""

    def __init__(self, api: FakeTokenizerApi | None = None, *, api_key: str | None = None) -> None:
        self.api = api or FakeTokenizerApi()
        self.api_key = api_key
        self.faults: deque[Behaviour] = deque()
        """Each answers one request in place of the tokenizer."""
        self.upstream = FakeUpstream(behaviour=self._answer)
        """The server itself: connections, counters, `wait_for`."""

    @property
    def url(self) -> str:
        return self.upstream.url

    @property
    def received(self) -> list[Received]:
        """The requests so far."""
        return self.upstream.received

    async def _answer(self, exchange: Exchange) -> None:
        if self.faults:
            await self.faults.popleft()(exchange)
            return
        request = exchange.request
        if self.api_key is not None and request.header("authorization") != f"Bearer {self.api_key}":
            status, answer = 401, _error("Unauthorized", code=401)
        else:
            status, answer = self.api.answer(request.target, request.json())
        await exchange.respond(json.dumps(answer).encode(), status=status)

    async def __aenter__(self) -> Self:
        await self.upstream.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.upstream.stop()


@dataclass(slots=True, kw_only=True)
class FakeHost:
    """An endpoint in memory."""

    api: FakeTokenizerApi = field(default_factory=FakeTokenizerApi)
    delay_s: float = 0.0
    """How long it takes for each answer."""
    is_down: bool = False
    faults: deque[RemoteAnswer | HeadraceError] = field(default_factory=deque)
    """Each answers one request, or is raised, in place of the tokenizer."""
    asked_s: list[float] = field(default_factory=list)
    """When it was asked, by the loop's clock."""
    num_in_flight: int = 0


class FakeTransport:
    """A `RemoteTransport` to the `hosts`, which go by the URL of their endpoint; anything else is unreachable."""

    def __init__(self, hosts: dict[str, FakeHost]) -> None:
        self.hosts = hosts
        self.num_closes = 0

    async def post(self, url: str, body: bytes) -> RemoteAnswer:
        """See `RemoteTransport`."""
        base, _, path = url.rpartition("/")
        if self.num_closes:
            raise RemoteClosedError("the fake transport is closed")
        host = self.hosts.get(base)
        if host is None:
            raise UpstreamConnectError(f"no connection to {url}")
        host.asked_s.append(asyncio.get_running_loop().time())
        host.num_in_flight += 1
        try:
            await asyncio.sleep(host.delay_s)
        finally:
            host.num_in_flight -= 1
        return self._answer(host, f"/{path}", body)

    def _answer(self, host: FakeHost, path: str, body: bytes) -> RemoteAnswer:
        if host.is_down:
            raise UpstreamConnectError("connection refused")
        if host.faults:
            fault = host.faults.popleft()
            if isinstance(fault, HeadraceError):
                raise fault
            return fault
        status, answer = host.api.answer(path, json.loads(body))
        return RemoteAnswer(status=status, body=json.dumps(answer).encode())

    async def aclose(self) -> None:
        """See `RemoteTransport`."""
        self.num_closes += 1


def _refuse_unknown(request: dict[str, object], known: set[str]) -> None:
    if unknown := sorted(request.keys() - known):
        raise InvalidRequestError(f"the engine does not read {unknown[0]}", param=unknown[0])


def _error(message: str, *, param: str | None = None, code: int) -> dict[str, object]:
    return {"error": {"message": message, "type": "BadRequestError", "param": param, "code": code}}
