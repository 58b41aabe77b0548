"""LiteLLM's client against a server of ours: what it got, as JSON, one member for each call. Runs in that peer's
environment.

    PYTHON benchmarks/peers/litellm_client.py URL MODEL
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it asks the network for prices when it is imported

import litellm  # type: ignore[import-not-found]  # installed in its own environment alone

CHAT = [{"role": "user", "content": "Tell me of the river."}]
DIGIT = {
    "type": "object",
    "properties": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["digit"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "pick", "parameters": DIGIT}}


class Calls:
    """Each method is one call, short and greedy, and gives what came of it."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self._common: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}
        self._chat = {"model": f"openai/{model}", "messages": CHAT, "max_tokens": 20, "temperature": 0, **self._common}

    def chat(self) -> str:
        return str(litellm.completion(**self._chat).choices[0].message.content)

    def stream(self) -> str:
        chunks = litellm.completion(**self._chat, stream=True, stream_options={"include_usage": True})
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    def async_stream(self) -> str:
        async def collect() -> str:
            chunks = await litellm.acompletion(**self._chat, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        return asyncio.run(collect())

    def completion(self) -> str:
        answer = litellm.text_completion(
            model=f"text-completion-openai/{self._model}", prompt="Once", max_tokens=5, temperature=0, **self._common
        )
        return str(answer.choices[0].text)

    def embedding(self) -> int:
        answer = litellm.embedding(model=f"openai/{self._model}", input=["a river", "a hill"], **self._common)
        return len(answer.data)

    def response(self) -> str:
        answer = litellm.responses(
            model=f"openai/{self._model}", input="Tell me of the river.", max_output_tokens=20, **self._common
        )
        return str(answer.output[0].content[0].text)

    def anthropic(self) -> str:
        answer = litellm.completion(
            model=f"anthropic/{self._model}", messages=CHAT, max_tokens=20, api_base=self._url, api_key="none"
        )
        return str(answer.choices[0].message.content)

    def json_schema(self) -> str:
        form = {"type": "json_schema", "json_schema": {"name": "digit", "strict": True, "schema": DIGIT}}
        return str(
            litellm.completion(**{**self._chat, "max_tokens": 60}, response_format=form).choices[0].message.content
        )

    def tool(self) -> list[str]:
        answer = litellm.completion(**{**self._chat, "max_tokens": 100}, tools=[TOOL], tool_choice="required")
        function = answer.choices[0].message.tool_calls[0].function
        return [function.name, function.arguments]

    def unknown_model(self) -> str:
        return _error_of(lambda: litellm.completion(**{**self._chat, "model": "openai/other"}))

    def wrong_field(self) -> str:
        return _error_of(lambda: litellm.completion(**{**self._chat, "temperature": -5}))

    def too_long(self) -> str:
        return _error_of(
            lambda: litellm.completion(**{**self._chat, "messages": [{"role": "user", "content": "x " * 9000}]})
        )


def _error_of(call: Callable[[], object]) -> str:
    """The class of LiteLLM's that the server's error became."""
    try:
        call()
    except litellm.exceptions.BadRequestError as error:
        return type(error).__name__
    except litellm.exceptions.NotFoundError as error:
        return type(error).__name__
    return "no error"


def main() -> None:
    litellm.suppress_debug_info = True
    calls = Calls(sys.argv[1], sys.argv[2])
    names = [name for name in vars(Calls) if not name.startswith("_")]
    print(json.dumps({name: getattr(calls, name)() for name in names}))


if __name__ == "__main__":
    main()
