"""Every generating route with the real engine and the demo model: they agree with each other."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from headrace.engine import AsyncEngineArgs, AsyncLLMEngine
from headrace.server.settings import ServerSettings

pytestmark = pytest.mark.integration

DEMO = Path(__file__).parents[2] / "models" / "demo"
STORY = "Tell me a story about a river."
ASKED: Any = [{"role": "user", "content": STORY}]
KEY = {"authorization": "Bearer for-operators"}
WEATHER: Any = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]},
}


class Asked:
    """The same greedy chat by each route."""

    def __init__(self, server: Any, official: anthropic.AsyncAnthropic) -> None:
        self.openai = server.openai
        self.http = server.http
        self.anthropic = official

    async def chat(self) -> Any:
        return await self.openai.chat.completions.create(model="demo", messages=ASKED, temperature=0, max_tokens=24)

    async def response(self, **fields: Any) -> Any:
        return await self.openai.responses.create(
            model="demo", input=STORY, temperature=0, max_output_tokens=24, **fields
        )

    async def message(self, **fields: Any) -> Any:
        given = {"model": "demo", "messages": ASKED, "max_tokens": 24, "extra_body": {"temperature": 0}, **fields}
        return await self.anthropic.messages.create(**given)

    async def streamed_message(self) -> Any:
        greedy = {"temperature": 0}
        async with self.anthropic.messages.stream(
            model="demo", messages=ASKED, max_tokens=24, extra_body=greedy
        ) as stream:
            return await stream.get_final_message()

    async def post(self, route: str, body: Any = None) -> Any:
        response = await self.http.post(route, json=body, headers=KEY)
        assert response.status_code == 200, response.text
        return response.json() if response.content else None


@pytest.fixture
def demo(serve: Any) -> Any:
    @asynccontextmanager
    async def start() -> AsyncIterator[Asked]:
        arguments = AsyncEngineArgs(model=str(DEMO), served_model_name="demo", cpu_threads=1)
        settings = ServerSettings(port=0, admin_api_key=("for-operators",))
        async with (
            AsyncLLMEngine.from_engine_args(arguments) as engine,
            serve(engine, settings) as server,
            httpx2.AsyncClient(timeout=30, verify=False) as connections,
            anthropic.AsyncAnthropic(
                base_url=server.url, api_key="none", max_retries=0, http_client=connections
            ) as official,
        ):
            yield Asked(server, official)

    return start


async def test_every_route_gives_the_same_answer_also_after_a_sleep(demo: Any) -> None:
    """One start for all, since it costs seconds."""
    async with demo() as asked:
        chat = await asked.chat()
        text = chat.choices[0].message.content
        assert len(text) > 20

        assert (await asked.response()).output_text == text
        events = [event async for event in await asked.response(stream=True)]
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
        assert events[-1].response.output_text == text
        assert events[-1].response.usage.input_tokens == chat.usage.prompt_tokens

        message = await asked.message()
        assert message.content[0].text == text
        assert (await asked.streamed_message()).content[0].text == text
        assert message.usage.input_tokens + message.usage.cache_read_input_tokens == chat.usage.prompt_tokens
        counted = await asked.anthropic.messages.count_tokens(model="demo", messages=ASKED)
        assert counted.input_tokens == chat.usage.prompt_tokens

        rendered = await asked.post(
            "/v1/chat/completions/render", {"messages": ASKED, "temperature": 0, "max_tokens": 24}
        )
        generated = await asked.post("/inference/v1/generate", {**rendered, "sampling_params": {
            **rendered["sampling_params"], "logprobs": 2}})  # fmt: skip
        (choice,) = generated["choices"]
        assert (await asked.post("/detokenize", {"tokens": choice["token_ids"]}))["prompt"] == text
        first, *_ = choice["logprobs"]["content"]
        assert first["token_id"] == choice["token_ids"][0]
        assert [top["rank"] for top in first["top_logprobs"]][:2] == [1, 1] or first["rank"] == 1

        prompt = {"prompt": "The river", "echo": True, "max_tokens": 0, "logprobs": 1}
        (echo,) = (await asked.post("/v1/completions", prompt))["choices"]
        assert "".join(echo["logprobs"]["tokens"]) == echo["text"] == "The river"
        assert echo["logprobs"]["token_logprobs"][0] is None
        assert all(logprob < 0 for logprob in echo["logprobs"]["token_logprobs"][1:])

        assert await asked.post("/sleep?level=1") == {"status": "sleeping", "level": 1}
        assert await asked.post("/wake_up") == {"status": "awake", "tags": None}
        assert (await asked.chat()).choices[0].message.content == text
        assert await asked.post("/reset_prefix_cache") == {"success": True}
        assert (await asked.http.post("/start_profile", headers=KEY)).json()["error"]["param"] == "profiler_dir"


async def test_a_forced_tool_and_a_format_are_kept_to(demo: Any) -> None:
    async with demo() as asked:
        message = await asked.message(tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=200)
        assert message.stop_reason == "tool_use"
        assert {block.name for block in message.content} == {"weather"}
        assert all(isinstance(block.input["wet"], bool) for block in message.content)

        schema = {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}
        wanted = {"format": {"type": "json_schema", "name": "river", "schema": schema, "strict": True}}
        response = await asked.response(text=wanted)
        assert isinstance(json.loads(response.output_text)["wet"], bool)

        with_logprobs = await asked.response(include=["message.output_text.logprobs"], top_logprobs=2)
        told = with_logprobs.output[0].content[0].logprobs
        assert "".join(token.token for token in told) == with_logprobs.output_text
        events = [
            event
            async for event in await asked.response(
                include=["message.output_text.logprobs"], top_logprobs=2, stream=True
            )
        ]
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        assert [token.token for event in deltas for token in event.logprobs] == [token.token for token in told]
