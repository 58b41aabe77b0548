"""The forms in which models write tool calls, and which of them a chat template teaches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

FormName: TypeAlias = Literal["hermes", "llama3_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """How calls stand in a model's text: each is a JSON object, in a pair of tags or bare."""

    name: str
    openers: tuple[str, ...]
    """What may begin a call; the first is how it is written."""
    closer: str | None = None
    """What ends it; None where the object's last brace does."""
    argument_key: str = "arguments"
    separators: str = " \t\r\n"
    """Characters that mean nothing next to a call."""
    between: str = "\n"
    """What is written between two calls."""

    @property
    def is_bare(self) -> bool:
        """Whether any brace of the text may be the first of a call."""
        return "{" in self.openers


HERMES = ToolForm(name="hermes", openers=("<tool_call>",), closer="</tool_call>")
"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3, and many after them."""

LLAMA3_JSON = ToolForm(
    name="llama3_json",
    openers=("{", "<|python_tag|>"),
    argument_key="parameters",
    separators=" \t\r\n;",
    between="; ",
)
"""`{"name": ..., "parameters": {...}}`, bare: Llama 3.1 and later."""

BARE_JSON = ToolForm(name="bare_json", openers=("{",))
"""`{"name": ..., "arguments": {...}}`: for models of no known form, which only write a call when they are made to."""

FORMS: Mapping[FormName, ToolForm] = {"hermes": HERMES, "llama3_json": LLAMA3_JSON}

_OTHER_TAGGED_FORMS = ("<function=", "<arg_key>", "<tool_sep>")
"""Of models that put something else than JSON between Hermes' tags."""


def recognized_form(template_source: str) -> ToolForm | None:
    """The form that a chat template asks for, where it is plain; None when it is not."""
    if "tools" not in template_source:
        return None
    if "<tool_call>" in template_source:
        is_json = "arguments" in template_source and not any(tag in template_source for tag in _OTHER_TAGGED_FORMS)
        return HERMES if is_json else None
    is_llama = "<|start_header_id|>" in template_source or "<|python_tag|>" in template_source
    return LLAMA3_JSON if is_llama and '"parameters"' in template_source else None
