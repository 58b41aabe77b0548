"""Compiles what a request wants its answer to look like, and says which tokens may come next. Owns the grammar library.

llguidance works in any thread, and builds grammars and masks without holding Python's lock.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.engine.structured_outputs import StructuredOutputsParams
from headrace.errors import EngineGenerateError, HeadraceError, InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

_MAX_ERROR_CHARS = 300

_MEANS_SOMETHING = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")
"""To the library's regular expressions; a backslash takes the meaning away."""

_ALLOWS_NOTHING = "NoExtensionBias"
"""What the library says then."""

_MAX_LEXER_STATES = 50_000
"""Of one grammar, one or two kilobytes each, made as answers need them: no grammar takes more than 100 MB."""


class Grammar(Protocol):
    """A compiled grammar, which any number of requests may follow at once."""

    def start(self) -> "GrammarMatcher":
        """For one answer, from its beginning."""
        ...


class CompileGrammar(Protocol):
    def __call__(self, params: StructuredOutputsParams) -> Grammar:
        """Compile (blocking). Raises InvalidRequestError, naming the field, for what the library refuses."""
        ...


@dataclass(slots=True)
class GrammarMatcher:
    """One answer on its way through its grammar."""

    next_mask: bytes
    """Which tokens may come next: one bit for each id, the lowest of the first byte being id 0."""
    _matcher: "LLMatcher"
    _param: str
    """The field that asks for this, as errors name it."""
    is_complete: bool = False
    """Nothing may follow any more."""
    error: HeadraceError | None = None
    """Why the answer cannot go on; nothing else here means anything then."""

    def advance(self, token_id: int) -> None:
        """Take the token that was drawn."""
        matcher = self._matcher
        if not matcher.consume_token(token_id):
            self.error = self._failure(token_id)
            return
        if not matcher.is_stopped():
            self.next_mask = matcher.compute_bitmask()  # may find out that nothing follows
        self.is_complete = matcher.is_stopped()
        if matcher.is_error():
            self.error = self._too_complex()

    def _failure(self, token_id: int) -> HeadraceError:
        byte, bit = divmod(token_id, 8)
        if byte < len(self.next_mask) and self.next_mask[byte] >> bit & 1:  # it fits, but cannot be followed
            return self._too_complex()
        return EngineGenerateError(f"token {token_id} does not fit {self._param}: {self._reason}")

    def _too_complex(self) -> InvalidRequestError:
        message = f"{self._param} is too complex to be followed; make it simpler: {self._reason}"
        return InvalidRequestError(message, param=self._param)

    @property
    def _reason(self) -> str:
        return _first_line(self._matcher.get_error())


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """See `Grammar`."""

    _template: "LLMatcher"
    _first_mask: bytes
    _param: str

    def start(self) -> GrammarMatcher:
        return GrammarMatcher(self._first_mask, self._template.deep_copy(), self._param)


class GrammarCompiler:
    """Compiles for one tokenizer, which is read at the first call (up to a second for 150,000 tokens)."""

    def __init__(self, tokenizer: str, *, eos_token_ids: tuple[int, ...]) -> None:
        """`tokenizer` is a `tokenizer.json`, or the directory that holds one."""
        self._path = Path(tokenizer)
        self._eos_token_ids = eos_token_ids
        self._tokenizer: LLTokenizer | None = None

    def __repr__(self) -> str:
        return f"GrammarCompiler({str(self._path)!r}, {'loaded' if self._tokenizer is not None else 'not loaded'})"

    def __call__(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """See `CompileGrammar`. For one thread at a time."""
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError as error:
            message = "structured_outputs needs the package llguidance, which the extra headrace[engine] installs"
            raise UnsupportedError(message, param="structured_outputs") from error
        limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
        matcher = LLMatcher(self._loaded_tokenizer(), _grammar_text(params), log_level=0, limits=limits)
        first_mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            raise _refused(params, matcher.get_error())
        return CompiledGrammar(matcher, first_mask, params.param)

    def _loaded_tokenizer(self) -> "LLTokenizer":
        if self._tokenizer is None:
            self._tokenizer = self._load_tokenizer()
        return self._tokenizer

    def _load_tokenizer(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        path = self._path / "tokenizer.json" if self._path.is_dir() else self._path
        try:
            return LLTokenizer(path.read_text(encoding="utf-8"), eos_token=list(self._eos_token_ids) or None)
        except (OSError, ValueError) as error:
            message = f"structured_outputs needs a tokenizer.json that llguidance can read; {path}: {error}"
            raise UnsupportedError(message, param="structured_outputs") from error


def _grammar_text(params: StructuredOutputsParams) -> str:
    """In the library's own notation."""
    from llguidance import LLMatcher, grammar_from

    try:
        match params.kind:
            case "json":
                assert isinstance(params.json, str)
                return LLMatcher.grammar_from_json_schema(params.json, overrides=_json_options(params))
            case "json_object":
                return LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=_json_options(params))
            case "regex":
                return LLMatcher.grammar_from_regex(params.regex or "")
            case "choice":
                # As rules of a grammar, those that begin alike would be followed one by one, 2,000 of them at most.
                return LLMatcher.grammar_from_regex("|".join(map(_literal, params.choice or ())))
            case _:
                return grammar_from("grammar", params.grammar or "")
    except (ValueError, RecursionError) as error:
        raise _refused(params, str(error)) from error


def _literal(text: str) -> str:
    """A regular expression for just this text."""
    return _MEANS_SOMETHING.sub(r"\\\g<0>", text)


def _json_options(params: StructuredOutputsParams) -> "JsonCompileOptions":
    options: JsonCompileOptions = {}
    if params.disable_any_whitespace:
        options["whitespace_flexible"] = False
    if params.whitespace_pattern is not None:
        options["whitespace_pattern"] = params.whitespace_pattern
    return options


def _refused(params: StructuredOutputsParams, reason: str) -> InvalidRequestError:
    if _ALLOWS_NOTHING in reason:
        reason = "no text can be of this form; does a $ref refer to itself?"
    return InvalidRequestError(f"{params.param} cannot be used: {_first_line(reason)}", param=params.param)


def _first_line(reason: str) -> str:
    return " ".join(reason.split())[:_MAX_ERROR_CHARS]
