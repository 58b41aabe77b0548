"""What a request says of tools."""

from typing import Any

import pytest

from headrace.errors import InvalidRequestError
from headrace.openai.tools.request import tool_request


def tool(name: str = "add", **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **more}}


def named(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("tools", "choice"), [(None, None), ([], None), ([], "auto"), (None, "none"), ([tool()], "none")]
)
def test_without_tools_or_with_the_choice_none_there_is_nothing_to_call(tools: Any, choice: Any) -> None:
    assert tool_request(tools, choice=choice, parallel=None) is None


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, ("auto", True)),
        ("auto", True, ("auto", True)),
        ("required", False, ("required", False)),
        (named("add"), True, ("named", False)),
    ],
)
def test_the_choice_says_whether_a_call_is_forced(choice: Any, parallel: Any, expected: tuple[str, bool]) -> None:
    request = tool_request([tool("add"), tool("sub")], choice=choice, parallel=parallel)
    assert request is not None
    assert (request.choice, request.allows_several) == expected
    assert request.is_forced == (expected[0] != "auto")


def test_a_named_choice_leaves_one_function() -> None:
    request = tool_request([tool("add"), tool("sub")], choice=named("sub"), parallel=None)
    assert request is not None
    assert request.names == {"sub"}


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([tool(), {}], None, "tools[1].type"),
        ([{"type": "web_search"}], None, "tools[0].type"),
        ([{"type": "custom", "custom": {}}], None, "tools[0].type"),
        ([{"type": "function"}], None, "tools[0].function"),
        ([{"type": "function", "function": {}}], None, "tools[0].function.name"),
        ([tool(5)], None, "tools[0].function.name"),  # type: ignore[arg-type]
        ([tool("")], None, "tools[0].function.name"),
        ([tool("x" * 300)], None, "tools[0].function.name"),
        ([tool(parameters=[])], None, "tools[0].function.parameters"),
        ([tool(strict="yes")], None, "tools[0].function.strict"),
        ([tool(), tool()], None, "tools[1].function.name"),
        ([], "required", "tool_choice"),
        (None, named("add"), "tool_choice"),
        ([tool()], named("sub"), "tool_choice"),
        ([tool()], "any", "tool_choice"),
        ([tool()], {"type": "function"}, "tool_choice.function"),
        ([tool()], {"type": "allowed_tools"}, "tool_choice.type"),
        ([tool()], {"function": {"name": "add"}}, "tool_choice.type"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        tool_request(tools, choice=choice, parallel=None)
    assert refused.value.param == param
    assert param.partition("[")[0].partition(".")[0] in refused.value.message
