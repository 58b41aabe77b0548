"""Which form of tool calls a chat template teaches."""

import pytest

from headrace.openai.tools.forms import HERMES, LLAMA3_JSON, recognized_form

QWEN = """{%- if tools %}# Tools {{ tool | tojson }} return a json object within <tool_call></tool_call> XML tags:
<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>"""
QWEN_CODER = """{%- if tools %}<tool_call>\\n<function=example>\\n<parameter=arguments>\\n</function>\\n</tool_call>"""
GLM = """{%- if tools %}<tool_call>{function-name}\\n<arg_key>{key}</arg_key> {{ call.arguments }}</tool_call>"""
LLAMA = """{{ '<|start_header_id|>' }}{%- if tools is not none %}Respond in the format {"name": function name,
"parameters": dictionary of argument name and its value}"""
CHATML = "{% for message in messages %}<|im_start|>{{ message['content'] }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (QWEN, HERMES),
        (LLAMA, LLAMA3_JSON),
        (QWEN_CODER, None),
        (GLM, None),
        (CHATML, None),
        ("{{ tools | tojson }}", None),
        ("", None),
    ],
)
def test_a_form_is_recognized_only_where_it_is_plain(template: str, form: object) -> None:
    assert recognized_form(template) is form
