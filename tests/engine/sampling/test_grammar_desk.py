"""Requests wait for their grammars without holding up anybody, and each comes out once."""

import threading
from dataclasses import dataclass, field

import pytest

from headrace.engine.guided.desk import GrammarDesk
from headrace.engine.guided.grammar import GrammarMatcher
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.structured_outputs import StructuredOutputsParams
from headrace.engine.wire.messages import AddRequest
from headrace.errors import EngineGenerateError, InvalidRequestError, OverloadedError
from headrace.testing.core_driver import add_request


class FakeGrammar:
    def start(self) -> GrammarMatcher:
        return GrammarMatcher(b"", None, "regex")  # type: ignore[arg-type]  # never advanced


@dataclass
class FakeCompiler:
    """Compiles "slow" only when `gate` is open, refuses "bad", fails on "broken"."""

    gate: threading.Event = field(default_factory=threading.Event)
    compiled: list[str] = field(default_factory=list)

    def __call__(self, params: StructuredOutputsParams) -> FakeGrammar:
        assert params.regex is not None
        if params.regex == "slow":
            assert self.gate.wait(30)
        self.compiled.append(params.regex)
        if params.regex == "bad":
            raise InvalidRequestError("bad grammar", param=params.param)
        if params.regex == "broken":
            raise RuntimeError("a defect")
        return FakeGrammar()


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def guided(request_id: str, regex: str) -> AddRequest:
    return add_request(request_id, [1], params=SamplingParams(structured_outputs=StructuredOutputsParams(regex=regex)))


def outcome(desk: GrammarDesk, num: int) -> dict[str, object]:
    """What becomes of `num` requests."""
    found: dict[str, object] = {}
    while len(found) < num:
        desk.wait(timeout_s=10)
        for settled in desk.collect():
            assert (settled.matcher is None) != (settled.error is None)
            found[settled.request.request_id] = settled.matcher or settled.error
    return found


@pytest.fixture
def compiler() -> FakeCompiler:
    return FakeCompiler()


def test_equal_grammars_are_compiled_once(compiler: FakeCompiler) -> None:
    desk = GrammarDesk(compiler)
    for number in range(3):
        desk.add(guided(str(number), "a"))
    first = outcome(desk, 3)
    desk.add(guided("later", "a"))
    matchers = [*first.values(), *outcome(desk, 1).values()]
    assert compiler.compiled == ["a"]
    assert len({id(matcher) for matcher in matchers}) == 4, "each answer follows the grammar by itself"
    assert len(desk) == 0


def test_the_oldest_grammar_is_forgotten(compiler: FakeCompiler) -> None:
    desk = GrammarDesk(compiler, max_grammars=2)
    for number, regex in enumerate(["a", "b", "a", "c", "a", "b"]):
        desk.add(guided(str(number), regex))
        outcome(desk, 1)
    assert compiler.compiled == ["a", "b", "c", "b"]


def test_a_refused_grammar_is_its_requests_error(compiler: FakeCompiler) -> None:
    desk = GrammarDesk(compiler)
    desk.add(guided("refused", "bad"))
    desk.add(guided("failed", "broken"))
    found = outcome(desk, 2)
    assert isinstance(found["refused"], InvalidRequestError)
    assert isinstance(found["failed"], EngineGenerateError)


def test_one_that_takes_too_long_is_given_up(compiler: FakeCompiler) -> None:
    clock = Clock()
    desk = GrammarDesk(compiler, timeout_s=5.0, clock=clock)
    desk.add(guided("slow", "slow"))
    assert desk.collect() == []
    clock.now = 5.0
    [settled] = desk.collect()
    assert settled.error is not None
    assert "within 5 s" in settled.error.message
    assert len(desk) == 0
    compiler.gate.set()


def test_an_aborted_request_never_comes_out(compiler: FakeCompiler) -> None:
    desk = GrammarDesk(compiler)
    desk.add(guided("gone", "slow"))
    desk.add(guided("stays", "slow"))
    assert [request.request_id for request in desk.abort(["gone", "unknown"])] == ["gone"]
    compiler.gate.set()
    assert list(outcome(desk, 1)) == ["stays"]


def test_the_desk_is_bounded(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.guided.desk._MAX_WAITING", 1)
    desk = GrammarDesk(compiler)
    desk.add(guided("first", "slow"))
    with pytest.raises(OverloadedError, match="try again"):
        desk.add(guided("second", "slow"))
    compiler.gate.set()
    assert list(outcome(desk, 1)) == ["first"]


def test_closing_drops_what_was_not_begun(compiler: FakeCompiler) -> None:
    desk = GrammarDesk(compiler)
    desk.add(guided("begun", "slow"))
    desk.add(guided("waits", "a"))
    desk.close()
    desk.close()
    compiler.gate.set()
    assert "a" not in compiler.compiled
