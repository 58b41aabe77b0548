"""Chat templates, rendered as Hugging Face's transformers renders them.

Chooses between named templates and makes messages ready for the one that is chosen. Knows nothing of tokens.
"""

from collections.abc import Iterable, Mapping, Sequence

import jinja2
import jinja2.nodes

from headrace.errors import InvalidRequestError, TokenizationError
from headrace.tokenization.chat_messages import ContentFormat, Message, prepare_messages, with_contents
from headrace.tokenization.template_environment import TemplateEnvironment

_RESERVED_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})

_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template can raise on messages it was not written for."""

_CONTINUE_MARK = "<HEADRACE:CONTINUE-HERE> "
"""Put after the final message to find its end in the rendered text. The space shows whether the template trims."""


class ChatTemplate:
    """One chat template, or several by name, of which `tool_use` is taken when tools are given, else `default`.

    Immutable and thread-safe. Raises TokenizationError at construction when a template is not valid Jinja.
    """

    def __init__(self, template: str | Mapping[str, str], *, special_tokens: Mapping[str, str] | None = None) -> None:
        self.sources = {"default": template} if isinstance(template, str) else dict(template)
        self._special_tokens = dict(special_tokens or {})
        environment = TemplateEnvironment()
        self._compiled = {name: _compile(environment, source, name=name) for name, source in self.sources.items()}
        self._content_formats = {name: _content_format(environment, text) for name, text in self.sources.items()}

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The variables that every rendering sees, such as `bos_token`."""
        return self._special_tokens

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt for `messages`. With `continue_final_message` it ends where the final message's text ends.

        Raises InvalidRequestError naming the field; what the template itself refuses names `messages`.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other; set one of them to false",
                param="continue_final_message",
            )
        name = self._choose(has_tools=tools is not None)
        prepared = prepare_messages(messages, content_format=self._content_formats[name])
        final_text = _mark_final_message(prepared) if continue_final_message else None
        variables: dict[str, object] = {**self._special_tokens, **_checked(template_kwargs)}
        variables.update(
            tools=None if tools is None else list(tools), documents=None, add_generation_prompt=add_generation_prompt
        )
        text = _render(self._compiled[name], prepared, variables)
        return text if final_text is None else _cut_at_mark(text, final_text)

    def _choose(self, *, has_tools: bool) -> str:
        if has_tools and "tool_use" in self.sources:
            return "tool_use"
        if "default" not in self.sources:
            raise InvalidRequestError(
                f"the model has no default chat template, only {', '.join(sorted(self.sources))}", param="messages"
            )
        return "default"

    def __repr__(self) -> str:
        return f"ChatTemplate({', '.join(sorted(self.sources))})"


def _render(template: jinja2.Template, messages: list[dict[str, object]], variables: Mapping[str, object]) -> str:
    """An assistant's message that is calls alone has no content; to a template that cannot do without, it is empty."""
    try:
        try:
            return template.render(messages=messages, **variables)
        except jinja2.UndefinedError:
            return template.render(messages=with_contents(messages), **variables)
    except _RENDER_ERRORS as error:
        raise InvalidRequestError(
            f"the model's chat template refuses these messages: {error}", param="messages"
        ) from error


def _compile(environment: jinja2.Environment, source: str, *, name: str) -> jinja2.Template:
    try:
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise TokenizationError(f"chat template {name!r} is not valid: {error}") from error
    template.globals = dict(template.globals)  # jinja's own view of two mappings is copied item by item every time
    return template


def _checked(template_kwargs: Mapping[str, object] | None) -> Mapping[str, object]:
    if taken := _RESERVED_VARIABLES.intersection(template_kwargs or ()):
        raise InvalidRequestError(
            f"chat_template_kwargs may not set {', '.join(sorted(taken))}; the request has fields for that",
            param="chat_template_kwargs",
        )
    return template_kwargs or {}


def _mark_final_message(messages: list[dict[str, object]]) -> str:
    """Put the mark after the final message's text, in a copy of it; returns that text."""
    final = messages[-1] = dict(messages[-1])
    content = final.get("content")
    if isinstance(content, str):
        final["content"] = content + _CONTINUE_MARK
        return content
    if isinstance(content, list) and content:
        text = str(content[-1]["text"])
        final["content"] = [*content[:-1], {**content[-1], "text": text + _CONTINUE_MARK}]
        return text
    raise InvalidRequestError(
        "continue_final_message is set but the final message has no text to continue", param="continue_final_message"
    )


def _cut_at_mark(text: str, final_text: str) -> str:
    mark_start = text.rfind(_CONTINUE_MARK.rstrip())
    if mark_start < 0 or final_text.strip() not in text:
        raise InvalidRequestError(
            "continue_final_message is set but the chat template drops or changes the final message",
            param="continue_final_message",
        )
    is_spacing_kept = text.startswith(_CONTINUE_MARK, mark_start)
    return text[:mark_start] if is_spacing_kept else text[:mark_start].rstrip()


def _content_format(environment: jinja2.Environment, source: str) -> ContentFormat:
    """A template that loops over `content` reads parts; if it never asks whether content is a string, parts only."""
    tree = environment.parse(source)
    content_names = {"content"} | set(_names_of_content(tree))
    if not any(_is_content(loop.iter, content_names) for loop in tree.find_all(jinja2.nodes.For)):
        return "string"
    return "parts" if any(test.name == "string" for test in tree.find_all(jinja2.nodes.Test)) else "parts only"


def _names_of_content(tree: jinja2.nodes.Template) -> Iterable[str]:
    for assignment in tree.find_all(jinja2.nodes.Assign):
        if isinstance(assignment.target, jinja2.nodes.Name) and _is_content(assignment.node, {"content"}):
            yield assignment.target.name


def _is_content(node: jinja2.nodes.Node, names: set[str]) -> bool:
    """Whether `node` reads `x.content`, `x['content']` or a variable named in `names`, perhaps filtered or sliced."""
    if isinstance(node, jinja2.nodes.Filter):
        return node.node is not None and _is_content(node.node, names)
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, jinja2.nodes.Getitem):
        if isinstance(node.arg, jinja2.nodes.Const):
            return bool(node.arg.value == "content")
        return _is_content(node.node, names)
    return isinstance(node, jinja2.nodes.Name) and node.name in names
