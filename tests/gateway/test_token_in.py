"""What goes to an endpoint in place of text, and what never does."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.endpoints.endpoint import ModelCard, ServedModel
from headrace.gateway.http.message import Request
from headrace.gateway.identify import Call, CallFields, identify
from headrace.gateway.parity import ParityLedger
from headrace.gateway.prompt.tokens import PromptCount
from headrace.gateway.token_in.capability import UNKNOWN, Capability
from headrace.gateway.token_in.ids_json import IdsWriter
from headrace.gateway.token_in.sending import Sending, TokenIn
from headrace.gateway.usage.stream_usage import ask_usage
from headrace.tokenization.tokenizer import pack_token_ids

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HEADRACE = Capability(engine="headrace", takes_ids=True, chat_ids_field="prompt_token_ids")
VLLM = Capability(engine="vllm", takes_ids=True, chat_ids_field="kv_transfer_params")
SGLANG = Capability(engine="sglang", takes_ids=True, chat_ids_field="input_ids")
MESSAGES = [{"role": "user", "content": "Hi"}]
WRITER = IdsWriter()
IDS = [5, 0, 151643, 9999999]


@dataclass
class Target:
    """An endpoint, as far as token-in looks at it."""

    capability: Capability = HEADRACE
    name: str = "http://e"


@dataclass
class Bench:
    """Token-in that trusts everybody but for what a test says."""

    parity: ParityLedger = field(default_factory=ParityLedger)
    is_on: bool = True
    min_tokens: int = 1
    writer: IdsWriter = field(default_factory=lambda: WRITER)

    def prepare(
        self, call: Call, *prompts: list[int], target: Target | None = None, why: str = "exact", trusts: bool = True
    ) -> Sending:
        target = target or Target()
        if trusts:
            trust = self.parity.trust(model=call.model, endpoint=target.name, route=call.route.value)
            trust.note_proof("equal")
        token_ids = tuple(pack_token_ids(ids) for ids in prompts)
        lengths = [len(ids) for ids in prompts]
        count = PromptCount(total=sum(lengths), longest=max(lengths, default=0), why=why, token_ids=token_ids)
        token_in = TokenIn(self.parity, is_on=self.is_on, min_tokens=self.min_tokens, writer=self.writer)
        return token_in.prepare(call, count, target)  # type: ignore[arg-type]  # only what Target has is read


def call_of(path: str = CHAT, *, raw: bytes | None = None, **fields: object) -> Call:
    body = json.dumps({"model": "m"} | fields).encode() if raw is None else raw
    request = Request(method="POST", target=path.encode(), headers=[], is_http10=False, keep_alive=True, body=body)
    models = {"m": ServedModel(card=ModelCard(id="m"), raw=b"{}")}
    return identify(request, models=models, request_id=b"1")


def sent(sending: Sending) -> dict[str, object]:
    value = json.loads(b"".join(sending.call.body))
    assert isinstance(value, dict)
    return value


def why(call: Call, *prompts: list[int], target: Target | None = None) -> str | None:
    return Bench().prepare(call, *(prompts or (IDS,)), target=target).why_text


# the array of ids


@given(st.lists(st.integers(0, (1 << 32) - 1) | st.integers(0, 200_000), max_size=50))
def test_written_ids_are_the_ids(ids: list[int]) -> None:
    assert json.loads(WRITER.write(pack_token_ids(ids))) == ids


def test_also_of_more_ids_than_are_written_at_once() -> None:
    ids = np.arange(0, 10_000_000, 311, dtype=np.uint32)

    assert json.loads(WRITER.write(ids)) == ids.tolist()


# completions


def test_the_prompts_text_gives_way_to_its_ids_and_nothing_else_changes() -> None:
    raw = b'{ "model":"m","user":"\\"Hi\\"", "prompt" : "Hi" ,"temperature":0.50 }'
    sending = Bench().prepare(call_of(COMPLETIONS, raw=raw), [5, 6])

    written = WRITER.write(pack_token_ids([5, 6]))
    assert b"".join(sending.call.body) == raw.replace(b': "Hi" ,', b": " + written + b" ,")
    assert sending.header == b"yes"


def test_of_two_prompts_in_one_body_the_last_counts_and_is_replaced() -> None:
    sending = Bench().prepare(call_of(COMPLETIONS, raw=b'{"prompt":"Hi","model":"m","prompt":"Hi"}'), [5])

    assert b'{"prompt":"Hi","model":"m","prompt":[' in b"".join(sending.call.body)
    assert sent(sending)["prompt"] == [5]


def test_several_prompts_become_several_arrays() -> None:
    sending = Bench().prepare(call_of(COMPLETIONS, prompt=["a", "b c"]), [1], [2, 3])

    assert sent(sending)["prompt"] == [[1], [2, 3]]


def test_ids_go_into_a_body_that_the_gateway_has_changed_already() -> None:
    call = ask_usage(call_of(COMPLETIONS, raw=b'{"prompt":"Hi","stream":true}'))
    sending = Bench().prepare(call, [5])

    expected = {"prompt": [5], "stream": True, "model": "m", "stream_options": {"include_usage": True}}
    assert sent(sending) == expected
    assert sending.call.hides_usage


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6), _JSON, max_size=6), st.text(max_size=20), st.booleans())
def test_whatever_else_a_request_to_our_engine_has_stays(
    others: dict[str, object], prompt: str, is_ascii: bool
) -> None:
    known = {"prompt": prompt, "model": "m"}
    fields = {name: value for name, value in others.items() if name not in _READ} | known
    raw = json.dumps(fields, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    sending = Bench().prepare(call_of(COMPLETIONS, raw=raw), IDS)

    assert sent(sending) == fields | {"prompt": IDS}


_READ = frozenset(CallFields.__struct_fields__) | {"echo", "suffix", "logprobs"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": "Hi", "echo": True}, "echo"),
        ({"prompt": "Hi", "logprobs": 0}, "logprobs"),
        ({"prompt": "Hi", "suffix": "end"}, "suffix"),
        ({"prompt": "Hi", "truncate_prompt_tokens": 4}, "truncated"),
        ({"prompt": [1, 2]}, "ids_given"),
        ({"prompt": [[1, 2]]}, "ids_given"),
        ({"prompt": ["a", "b"]}, "prompts_differ"),
        ({"prompt": ["a", [1]]}, "unknown_field"),
    ],
)
def test_completions_that_must_go_as_text(fields: dict[str, object], reason: str) -> None:
    call = call_of(COMPLETIONS, **fields)
    sending = Bench().prepare(call, IDS)

    assert sending.call is call
    assert (sending.why_text, sending.is_candidate) == (reason, False)
    assert sending.header == b"no; " + reason.encode()


@pytest.mark.parametrize("fields", [{"echo": None}, {"echo": False}, {"logprobs": None}, {"suffix": ""}])
def test_fields_that_ask_for_nothing_do_not_stand_in_the_way(fields: dict[str, object]) -> None:
    assert why(call_of(COMPLETIONS, prompt="Hi", **fields)) is None


def test_an_empty_prompt_goes_as_text() -> None:
    assert why(call_of(COMPLETIONS, prompt=["", "a"]), [], [1]) == "prompts_differ"


def test_others_than_our_engine_get_ids_only_where_every_field_is_known() -> None:
    for target in (Target(VLLM), Target(SGLANG)):
        assert why(call_of(COMPLETIONS, prompt="Hi", temperature=0, stop=["x"]), target=target) is None
        assert why(call_of(COMPLETIONS, prompt="Hi", prompt_embeds="x"), target=target) == "unknown_field"


# chat


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        (HEADRACE, {"prompt_token_ids": IDS}),
        (SGLANG, {"input_ids": IDS}),
        (VLLM, {"kv_transfer_params": {"prompt_token_ids": IDS}}),
    ],
)
def test_a_chat_keeps_its_messages_beside_the_ids(capability: Capability, expected: dict[str, object]) -> None:
    call = call_of(messages=MESSAGES, temperature=0.5)
    sending = Bench().prepare(call, IDS, target=Target(capability))

    assert sent(sending) == {"model": "m", "messages": MESSAGES, "temperature": 0.5} | expected
    assert b"".join(sending.call.body).startswith(call.request.body[:-1])


TOOLS = [{"type": "function", "function": {"name": "f"}}]
PART = {"type": "text", "text": "Hi"}
PARTS = [{"role": "user", "content": [PART, PART]}]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"messages": MESSAGES, "tools": TOOLS}, "not_plain"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"x": 1}}, "not_plain"),
        ({"messages": MESSAGES, "reasoning_effort": "low"}, "not_plain"),
        ({"messages": MESSAGES, "kv_transfer_params": {"x": 1}}, "not_plain"),
        ({"messages": MESSAGES, "never_heard_of": 1}, "not_plain"),
        ({"messages": PARTS}, "not_plain"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "not_plain"),
        ({"messages": [*MESSAGES, {"role": "tool", "content": "3", "tool_call_id": "1"}]}, "not_plain"),
        ({"messages": [{"role": "user", "content": "Hi", "name": "Ann"}]}, "not_plain"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "So"}]}, "continued"),
        ({"messages": MESSAGES, "add_special_tokens": True}, "special_tokens"),
    ],
)
def test_chats_that_others_may_render_in_their_own_way_go_as_text(fields: dict[str, object], reason: str) -> None:
    for target in (Target(VLLM), Target(SGLANG)):
        assert why(call_of(**fields), target=target) == reason


@pytest.mark.parametrize("fields", [{"messages": MESSAGES, "tools": TOOLS}, {"messages": PARTS}])
def test_our_own_engine_renders_by_the_same_code_so_they_go_as_ids(fields: dict[str, object]) -> None:
    assert why(call_of(**fields)) is None


def test_ids_of_the_clients_own_are_left_alone() -> None:
    assert why(call_of(messages=MESSAGES, prompt_token_ids=[1])) == "ids_given"


def test_a_message_in_one_part_is_like_one_of_text() -> None:
    messages = [{"role": "user", "content": [PART]}]

    assert why(call_of(messages=messages), target=Target(VLLM)) is None


# what decides before the body is looked at


@pytest.mark.parametrize(
    ("prompt_why", "ids", "changes", "reason"),
    [
        ("exact", IDS, {"is_on": False}, "off"),
        ("exact", IDS, {"min_tokens": 5}, "short"),
        ("drift", IDS, {}, "drift"),
        ("remote", IDS, {}, None),
    ],
)
def test_other_reasons_for_text(prompt_why: str, ids: list[int], changes: dict[str, int], reason: str | None) -> None:
    bench = Bench(**changes)

    assert bench.prepare(call_of(messages=MESSAGES), ids, why=prompt_why).why_text == reason


def test_without_tokens_or_capability_the_text_is_sent() -> None:
    assert Bench().prepare(call_of(messages=MESSAGES), why="no_tokenizer").why_text == "no_tokens"
    assert why(call_of(messages=MESSAGES), target=Target(UNKNOWN)) == "not_taken"
    assert why(call_of("/v1/embeddings", input="Hi")) == "route"


def test_a_prompt_too_long_to_write_on_the_event_loop_goes_as_text() -> None:
    sending = Bench().prepare(call_of(messages=MESSAGES), [1] * ((1 << 19) + 1))

    assert sending.why_text == "too_long"


def test_an_endpoint_on_trial_gets_text_and_its_answer_bears_on_that() -> None:
    sending = Bench().prepare(call_of(messages=MESSAGES), IDS, trusts=False)

    assert (sending.why_text, sending.is_candidate) == ("trial", True)
