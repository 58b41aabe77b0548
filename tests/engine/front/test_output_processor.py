"""Every request leaves the table exactly once, whatever happens to it in whichever order."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.engine import RequestOutputKind, SamplingParams
from headrace.engine.front.output_processor import OutputProcessor
from headrace.engine.front.request_progress import RequestProgress
from headrace.engine.wire.messages import TokenDelta
from headrace.errors import EngineDeadError, HeadraceError, InvalidRequestError
from headrace.tokenization import ByteTokenizer

NAMES = st.sampled_from("abcd")


class Machine(RuleBasedStateMachine):
    """The model: for each live request the text generated; for each one that left, its last word."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[str] = []
        self.processor = OutputProcessor(on_left=lambda progress: self.left.append(progress.core_id))
        self.all: dict[str, RequestProgress] = {}
        self.live: dict[str, RequestProgress] = {}

    @rule(name=NAMES)
    def add(self, name: str) -> None:
        params = SamplingParams(max_tokens=50, stop="xy", output_kind=RequestOutputKind.DELTA)
        progress = RequestProgress(
            request_id=name, core_id=f"{name}#{len(self.all)}", params=params, arrival_time=0.0, notify=lambda: None
        )
        decoder = ByteTokenizer().incremental_decoder(skip_special_tokens=True)
        progress.set_prompt("p", token_ids=np.array([1], dtype=np.uint32), decoder=decoder, eos_token_ids=frozenset())
        if name in self.live:
            with pytest.raises(InvalidRequestError):
                self.processor.add(progress)
        else:
            self.processor.add(progress)
            self.all[progress.core_id] = self.live[name] = progress

    @rule(name=NAMES, text=st.text(alphabet="xyz", min_size=1, max_size=3), reason=st.sampled_from([None, "length"]))
    def step(self, name: str, text: str, reason: str | None) -> None:
        progress = self.live.get(name)
        core_id = progress.core_id if progress is not None else f"{name}#gone"
        delta = TokenDelta(request_id=core_id, new_token_ids=tuple(text.encode()), finish_reason=reason)
        to_abort = self.processor.apply([delta], now=1.0)
        if progress is not None and progress.is_finished:
            del self.live[name]
            assert to_abort == ([] if reason else [core_id])
        else:
            assert to_abort == []

    @rule(names=st.lists(NAMES))
    def abort(self, names: list[str]) -> None:
        expected = {self.live.pop(name).core_id for name in set(names) if name in self.live}
        assert set(self.processor.abort(names, now=1.0)) == expected

    @rule(name=NAMES)
    def discard(self, name: str) -> None:
        progress = self.live.pop(name, None)
        if progress is not None:
            assert self.processor.discard(progress) == [progress.core_id]
            assert self.processor.discard(progress) == []

    @rule()
    def die(self) -> None:
        self.processor.fail_all(lambda: EngineDeadError("dead"), now=1.0)
        self.live.clear()

    @invariant()
    def each_left_once(self) -> None:
        assert len(self.left) == len(set(self.left)) == len(self.all) - len(self.live)
        assert len(self.processor) == len(self.live)

    def teardown(self) -> None:
        for core_id, progress in self.all.items():
            endings = 0
            try:
                while (output := progress.take()) is not None:
                    endings += output.finished
            except HeadraceError:
                endings += 1
            assert endings <= 1
            assert progress.take() is None
            assert core_id in self.left or progress.request_id in self.live


TestOutputProcessor = Machine.TestCase
TestOutputProcessor.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_the_same_request_aborted_twice_in_one_call_is_aborted_once() -> None:
    machine = Machine()
    machine.add("a")
    assert machine.processor.abort(["a", "a"], now=1.0) == ["a#0"]
