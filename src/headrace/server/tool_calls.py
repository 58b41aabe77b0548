"""Tool calls in chats: what a request's tools ask of the engine, and the calls in the text that comes back.

Which form the model writes them in is found out once, when serving begins.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from headrace.aio.bridge import make_async
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.structured_outputs import StructuredOutputsParams
from headrace.errors import InvalidRequestError
from headrace.openai.schema.chat import AssistantMessage, ChatCompletionRequest, Delta
from headrace.openai.schema.generation import GenerationRequest
from headrace.openai.schema.tools import FunctionCall, FunctionCallDelta, ToolCall, ToolCallDelta
from headrace.openai.tools import grammar
from headrace.openai.tools.forms import BARE_JSON, FORMS, ToolForm, recognized_form
from headrace.openai.tools.grammar import FormTokens
from headrace.openai.tools.parser import CallDelta, ParsedDelta, ToolCallParser
from headrace.openai.tools.request import ToolRequest, tool_request
from headrace.server.settings import ServerSettings
from headrace.tokenization import ChatTemplate, TokenizationService, Tokenizer

_MAX_CHARS_IN_PLACE = 20_000
"""Of an answer that is read on the event loop; the worst of them take milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSupport:
    """How the served model calls tools."""

    form: ToolForm | None = None
    """How it writes calls of its own accord; None when that is not known."""
    is_auto_allowed: bool = True
    tokens: FormTokens | None = None
    hides_tags: bool = False
    """The form's tags are special tokens, which texts leave out unless told otherwise."""

    def parser(self, tools: ToolRequest) -> ToolCallParser:
        """For one answer to a request with these tools."""
        form = self.form or BARE_JSON
        return ToolCallParser(form, tool_names=tools.names, allows_several=self.allows_several(tools))

    def allows_several(self, tools: ToolRequest) -> bool:
        """Whether an answer may hold more calls than one. A model that never learnt to call would not know its end."""
        return tools.allows_several and self.form is not None


async def tool_support(tokenization: TokenizationService, *, model: str, settings: ServerSettings) -> ToolSupport:
    """What the settings say of the model, or else its chat template."""
    tokenizer = tokenization.tokenizer(model)
    return await make_async(_support)(tokenizer, settings)


def _support(tokenizer: Tokenizer, settings: ServerSettings) -> ToolSupport:
    named = settings.tool_call_parser
    form = FORMS[named] if named is not None else _taught_form(tokenizer.chat_template)
    tokens = _tag_tokens(tokenizer, form)
    return ToolSupport(
        form=form,
        is_auto_allowed=settings.enable_auto_tool_choice,
        tokens=tokens,
        hides_tags=tokens is not None and tokens.opener in tokenizer.special_token_ids,
    )


def _taught_form(template: ChatTemplate | None) -> ToolForm | None:
    if template is None:
        return None
    source = template.sources.get("tool_use") or template.sources.get("default", "")
    return recognized_form(source)


def _tag_tokens(tokenizer: Tokenizer, form: ToolForm | None) -> FormTokens | None:
    if form is None or form.closer is None:
        return None
    opener, closer = tokenizer.encode_batch([form.openers[0], form.closer], add_special_tokens=False)
    return FormTokens(opener=int(opener[0]), closer=int(closer[0])) if len(opener) == len(closer) == 1 else None


def requested_tools(request: ChatCompletionRequest) -> ToolRequest | None:
    """The tools that the answer may call. Raises InvalidRequestError, naming the field."""
    return tool_request(request.tools, choice=request.tool_choice, parallel=request.parallel_tool_calls)


def with_tools(params: SamplingParams, request: GenerationRequest, support: ToolSupport) -> SamplingParams:
    """`params` as the tools of a chat need them; unchanged where there are none. Raises InvalidRequestError."""
    tools = requested_tools(request) if isinstance(request, ChatCompletionRequest) else None
    if tools is None:
        return params
    _check_choice(tools, support)
    return msgspec.structs.replace(
        params,
        structured_outputs=_structure(params, request, tools, support),
        skip_special_tokens=params.skip_special_tokens and not support.hides_tags,
    )


def _check_choice(tools: ToolRequest, support: ToolSupport) -> None:
    if tools.is_forced:
        return
    if not support.is_auto_allowed:
        message = 'tool_choice "auto" is switched off here (enable_auto_tool_choice); use "required", a name or "none"'
        raise InvalidRequestError(message, param="tool_choice")
    if support.form is None:
        message = (
            'tool_choice "auto" needs to know how the model writes calls, which its chat template does not tell; '
            'use "required" or a name, or have the server started with tool_call_parser'
        )
        raise InvalidRequestError(message, param="tool_choice")


def _structure(
    params: SamplingParams, request: GenerationRequest, tools: ToolRequest, support: ToolSupport
) -> StructuredOutputsParams | None:
    """What the answer must look like. `response_format` speaks of answers that call nothing."""
    answer_schema = _answer_schema(request)
    if params.structured_outputs is not None and answer_schema is None:
        message = 'structured_outputs and tools exclude each other; set tool_choice to "none", or use response_format'
        raise InvalidRequestError(message, param="structured_outputs")
    form = support.form or BARE_JSON
    functions, tokens, allows_several = tools.functions, support.tokens, support.allows_several(tools)
    if tools.is_forced:
        text = grammar.forced_calls(form, functions, tokens=tokens, allows_several=allows_several)
    elif answer_schema is not None:
        text = grammar.calls_or_json(
            form, functions, schema=answer_schema, tokens=tokens, allows_several=allows_several
        )
    elif grammar.is_any_strict(functions):
        text = grammar.text_with_calls(form, functions, tokens=tokens, allows_several=allows_several)
    else:
        return None
    return StructuredOutputsParams(grammar=text)


def _answer_schema(request: GenerationRequest) -> Mapping[str, object] | None:
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return None
    return wanted.json_schema.schema if wanted.json_schema is not None else {"type": "object"}


async def assistant_message(text: str, tools: ToolRequest, support: ToolSupport) -> AssistantMessage:
    """A whole answer; `content` is null when it is calls alone. A long one is read in a thread."""
    if len(text) <= _MAX_CHARS_IN_PLACE:
        return _assistant_message(text, tools, support)
    return await make_async(_assistant_message)(text, tools, support)


def _assistant_message(text: str, tools: ToolRequest, support: ToolSupport) -> AssistantMessage:
    parser = support.parser(tools)
    told = [parser.feed(text), parser.finish()]
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for call in (call for delta in told for call in delta.calls):
        names.setdefault(call.index, call.name or "")
        arguments[call.index] = arguments.get(call.index, "") + call.arguments
    calls = [
        ToolCall(id=_new_call_id(), function=FunctionCall(name=name, arguments=arguments[index]))
        for index, name in names.items()
    ]
    content = "".join(delta.content for delta in told)
    return AssistantMessage(content=content if content or not calls else None, tool_calls=calls or msgspec.UNSET)


class AnswerParsers:
    """The choices of one stream, each read by a parser of its own."""

    def __init__(self, tools: ToolRequest, support: ToolSupport) -> None:
        self._tools = tools
        self._support = support
        self._parsers: dict[int, ToolCallParser] = {}

    def __repr__(self) -> str:
        return f"AnswerParsers({len(self._parsers)} choices)"

    def feed(self, index: int, text: str) -> Delta | None:
        """What more text of the choice `index` tells; None when that is nothing yet."""
        return _delta(self._parser(index).feed(text))

    def finish(self, index: int) -> Delta | None:
        """What was held back of the choice, when its text has ended."""
        return _delta(self._parser(index).finish())

    def finish_reason(self, index: int, reason: str | None) -> str | None:
        return finish_reason(reason, self._tools, has_calls=self._parser(index).num_calls > 0)

    def _parser(self, index: int) -> ToolCallParser:
        if index not in self._parsers:
            self._parsers[index] = self._support.parser(self._tools)
        return self._parsers[index]


def finish_reason(reason: str | None, tools: ToolRequest, *, has_calls: bool) -> str | None:
    """As OpenAI has it: an answer that ended by calling says so, unless the request had named the function."""
    return "tool_calls" if reason == "stop" and has_calls and tools.choice != "named" else reason


def _delta(told: ParsedDelta) -> Delta | None:
    if not told:
        return None
    return Delta(
        content=told.content or msgspec.UNSET,
        tool_calls=[_call_delta(call) for call in told.calls] or msgspec.UNSET,
    )


def _call_delta(call: CallDelta) -> ToolCallDelta:
    if call.name is None:
        return ToolCallDelta(index=call.index, function=FunctionCallDelta(arguments=call.arguments))
    function = FunctionCallDelta(name=call.name, arguments=call.arguments)
    return ToolCallDelta(index=call.index, id=_new_call_id(), type="function", function=function)


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
