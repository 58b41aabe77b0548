"""The sampling fields of OpenAI's API and vLLM's extensions, over the real server and a real engine on a tiny model."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.async_engine import AsyncLLMEngine
from headrace.engine.config import AsyncEngineArgs
from headrace.testing.tiny_model import write_tiny_model

PROMPT = "Where does the water go"
SCHEMA = {
    "type": "object",
    "properties": {"stone": {"enum": ["flat", "round"]}},
    "required": ["stone"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
async def tiny(model_dir: Path, serve: Any) -> AsyncIterator[Any]:
    args = AsyncEngineArgs(
        model=str(model_dir), served_model_name="tiny", cpu_threads=1, device="cpu", disable_log_requests=True
    )
    async with AsyncLLMEngine.from_engine_args(args, in_process=True) as engine, serve(engine) as server:
        yield server


async def complete(tiny: Any, **fields: Any) -> Any:
    body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "ignore_eos": True, **fields}
    return (await tiny.http.post("/v1/completions", json=body)).json()


async def chat(tiny: Any, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "How are stones?"}]
    body = {"messages": messages, "max_tokens": 40, "seed": 1, **fields}
    return (await tiny.http.post("/v1/chat/completions", json=body)).json()


async def streamed(tiny: Any, route: str, **fields: Any) -> list[Any]:
    """The decoded chunks of a stream."""
    body = {"max_tokens": 5, "temperature": 0, "ignore_eos": True, "stream": True, **fields}
    if route == "/v1/completions":
        body["prompt"] = PROMPT
    else:
        body["messages"] = [{"role": "user", "content": PROMPT}]
    text = (await tiny.http.post(route, json=body)).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_n_choices_stand_prompt_after_prompt(tiny: Any) -> None:
    answer = await complete(tiny, prompt=[PROMPT, "The stone"], n=2, temperature=1, seed=4)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 20
    alone = await complete(tiny, prompt="The stone", temperature=1, seed=5)
    assert answer["choices"][3]["text"] == alone["choices"][0]["text"]


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
async def test_streamed_choices_join_to_those_of_the_whole_answer(tiny: Any, route: str) -> None:
    fields = {"n": 3, "temperature": 1, "seed": 8}
    texts = {0: "", 1: "", 2: ""}
    ends = []
    for chunk in await streamed(tiny, route, **fields):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            if choice["finish_reason"]:
                ends.append(choice["index"])
    assert sorted(ends) == [0, 1, 2]
    if route == "/v1/completions":
        whole = await complete(tiny, **fields)
        assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}


async def test_a_completions_log_probabilities(tiny: Any) -> None:
    choice = (await complete(tiny, logprobs=2))["choices"][0]
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"] or "\ufffd" in "".join(told["tokens"])
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["top_logprobs"]) == 5
    assert all(logprob <= 0 for logprob in told["token_logprobs"])
    lengths = [len(token) for token in told["tokens"]]
    assert told["text_offset"] == [sum(lengths[:place]) for place in range(5)]
    assert all(len(top) + 1 >= 2 for top in told["top_logprobs"])


async def test_streamed_log_probabilities_are_those_of_the_whole_answer(tiny: Any) -> None:
    whole = (await complete(tiny, logprobs=1))["choices"][0]["logprobs"]
    told: dict[str, list[Any]] = {name: [] for name in whole}
    for chunk in await streamed(tiny, "/v1/completions", logprobs=1):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            told[name] += values
    assert told == whole


async def test_a_chats_log_probabilities(tiny: Any) -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, "max_tokens": 5, "temperature": 0}
    content = (await chat(tiny, ignore_eos=True, **fields))["choices"][0]["logprobs"]["content"]
    assert len(content) == 5
    for entry in content:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"], "greedy takes the likeliest"
        logprobs = [top["logprob"] for top in entry["top_logprobs"]]
        assert logprobs == sorted(logprobs, reverse=True)


async def test_a_streamed_chat_tells_log_probabilities(tiny: Any) -> None:
    chunks = await streamed(tiny, "/v1/chat/completions", logprobs=True)
    told = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert len(told) == 5
    assert all(entry["top_logprobs"] == [] for entry in told)


async def test_an_echo_repeats_the_prompt_and_its_log_probabilities(tiny: Any) -> None:
    plain = (await complete(tiny))["choices"][0]["text"]
    for prompt in (PROMPT, [PROMPT]):
        choice = (await complete(tiny, prompt=prompt, echo=True, logprobs=0))["choices"][0]
        assert choice["text"] == PROMPT + plain
    told = choice["logprobs"]
    assert (told["token_logprobs"][0], told["top_logprobs"][0]) == (None, None)
    assert all(logprob is not None for logprob in told["token_logprobs"][1:])
    ids = (await tiny.http.post("/tokenize", json={"prompt": PROMPT})).json()["tokens"]
    assert (await complete(tiny, prompt=ids, echo=True))["choices"][0]["text"] == PROMPT + plain
    chunks = await streamed(tiny, "/v1/completions", echo=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == PROMPT + plain


@pytest.mark.parametrize("max_tokens", [5, 0])
async def test_a_streamed_echos_log_probabilities_join_to_the_whole_ones(tiny: Any, max_tokens: int) -> None:
    asked = {"echo": True, "logprobs": 2, "max_tokens": max_tokens}
    whole = (await complete(tiny, **asked))["choices"][0]["logprobs"]
    chunks = await streamed(tiny, "/v1/completions", **asked)
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    for name in ("tokens", "text_offset"):
        assert [item for each in told for item in each[name]] == whole[name]
    first, *rest = [item for each in told for item in each["token_logprobs"]]
    assert first is None
    assert rest == pytest.approx(whole["token_logprobs"][1:], abs=1e-3)
    assert [set(item or ()) for each in told for item in each["top_logprobs"]] == [
        set(item or ()) for item in whole["top_logprobs"]
    ]


async def test_a_prompts_log_probabilities(tiny: Any) -> None:
    told = (await complete(tiny, prompt_logprobs=1))["choices"][0]["prompt_logprobs"]
    assert told[0] is None
    assert all(1 <= len(position) <= 2 for position in told[1:])
    assert {"logprob", "rank", "decoded_token"} == set(next(iter(told[1].values())))
    assert (await chat(tiny, prompt_logprobs=0, max_tokens=1))["prompt_logprobs"][0] is None


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " "},
    ],
    ids=lambda value: next(iter(value)),
)
async def test_an_answer_follows_its_schema(tiny: Any, fields: dict[str, Any]) -> None:
    choice = (await chat(tiny, max_tokens=400, **fields))["choices"][0]  # random models like white space
    assert choice["finish_reason"] == "stop"
    assert json.loads(choice["message"]["content"])["stone"] in {"flat", "round"}


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"guided_choice": ["flat", "round"]}, {"flat", "round"}),
        ({"guided_regex": "(flat|round)"}, {"flat", "round"}),
        ({"guided_grammar": 'root ::= "flat" | "round"'}, {"flat", "round"}),
        ({"structured_outputs": {"choice": ["wheel"]}}, {"wheel"}),
    ],
)
async def test_an_answer_follows_its_form(tiny: Any, fields: dict[str, Any], answers: set[str]) -> None:
    assert (await chat(tiny, **fields))["choices"][0]["message"]["content"] in answers


async def test_a_json_object_is_one(tiny: Any) -> None:
    choice = (await chat(tiny, response_format={"type": "json_object"}, max_tokens=1))["choices"][0]
    assert choice["message"]["content"].lstrip()[:1] in {"", "{"}
    assert (await chat(tiny, response_format={"type": "text"}, max_tokens=1))["usage"]["completion_tokens"] == 1


async def test_tokens_are_biased_and_bounded(tiny: Any) -> None:
    ids = (await tiny.http.post("/tokenize", json={"prompt": "stone"})).json()["tokens"]
    only = await complete(tiny, allowed_token_ids=ids[:1], max_tokens=3)
    biased = await complete(tiny, logit_bias={str(ids[0]): 100}, max_tokens=3)
    assert only["choices"][0]["text"] == biased["choices"][0]["text"] != ""
    word = only["choices"][0]["text"][: len(only["choices"][0]["text"]) // 3]
    held = await complete(tiny, logit_bias={str(ids[0]): 100}, max_tokens=3, bad_words=[word])
    assert held["choices"][0]["text"] != biased["choices"][0]["text"]


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("chat", {"n": 0}, "n"),
        ("chat", {"n": 1000}, "n"),
        ("chat", {"top_logprobs": 2}, "top_logprobs"),
        ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("chat", {"logprob_token_ids": [1]}, "logprob_token_ids"),
        ("chat", {"logit_bias": {"x": 1}}, "logit_bias"),
        ("chat", {"logit_bias": {"99999": 1}}, "logit_bias"),
        ("chat", {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ("chat", {"response_format": {"type": "xml"}}, "response_format.type"),
        ("chat", {"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format"),
        ("chat", {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ("chat", {"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ("chat", {"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
        ("chat", {"guided_regex": "(a"}, "guided_regex"),
        ("completions", {"logprobs": -1}, "logprobs"),
        ("completions", {"echo": True, "logprobs": 1, "stream": True, "n": 2}, "n"),
        ("completions", {"bad_words": [""]}, "bad_words"),
        ("completions", {"allowed_token_ids": []}, "allowed_token_ids"),
    ],
)
async def test_what_does_not_go_is_refused_by_name(tiny: Any, route: str, fields: dict[str, Any], param: str) -> None:
    answer = await (chat if route == "chat" else complete)(tiny, **fields)
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("route", "fields", "name"),
    [
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "river"}}}},
            "response_format.json_schema.schema",
        ),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "river"}}}},
            "text.format.schema",
        ),
        (
            "/v1/messages",
            {"max_tokens": 5, "output_config": {"format": {"type": "json_schema", "schema": {"type": "river"}}}},
            "output_config.format.schema",
        ),
    ],
)
async def test_a_schema_that_is_none_is_refused_in_the_routes_own_words(
    tiny: Any, route: str, fields: dict[str, Any], name: str, is_streamed: bool
) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    asked = {"input": PROMPT} if route == "/v1/responses" else {"messages": messages}
    response = await tiny.http.post(route, json={**asked, **fields, "stream": is_streamed})
    assert response.status_code == 400, "also of a stream: its grammar is looked at before it begins"
    error = response.json()["error"]
    assert name in error["message"]
    assert error.get("param", name) == name
