"""What is kept of decisions, and how it is told."""

import pytest

from headrace.gateway.telemetry.decisions import Decision, DecisionLog, Made, Trace, TracedDecision


def made(number: int, *, why_text: str | None = None, outcome: str | int = 200) -> Made:
    return Made(float(number), b"id-%d" % number, "demo", "http://e", "cold", 9, 4, 3, why_text, outcome)


@pytest.mark.parametrize(
    ("why_text", "token_in", "outcome", "told"),
    [(None, "yes", 200, "200"), ("short", "no; short", "upstream_timeout", "upstream_timeout")],
)
def test_a_decision_is_told_in_full(why_text: str | None, token_in: str, outcome: str | int, told: str) -> None:
    log = DecisionLog()
    log.add(made(7, why_text=why_text, outcome=outcome))

    assert log.latest() == [
        Decision(
            time_s=7.0,
            request_id="id-7",
            model="demo",
            endpoint="http://e",
            reason="cold",
            prompt_tokens=9,
            cached_tokens_predicted=4,
            cached_tokens=3,
            token_in=token_in,
            outcome=told,
        )
    ]


def test_the_last_twenty_are_kept_the_youngest_first() -> None:
    log = DecisionLog()
    for number in range(50):
        log.add(made(number))

    assert [decision.request_id for decision in log.latest()] == [f"id-{number}" for number in range(49, 29, -1)]


class Sink:
    """Wants every decision."""

    def __init__(self) -> None:
        self.decisions: list[TracedDecision] = []

    def wants_next(self) -> bool:
        return True

    def add(self, decision: TracedDecision) -> None:
        self.decisions.append(decision)


def test_a_sink_gets_the_decision_with_its_trace() -> None:
    sink = Sink()
    log = DecisionLog(sink)
    assert log.wants_trace()
    log.trace(made(7), Trace(policy="prefix", output_length=5, hash_ids=[1, 2]))

    (traced,) = sink.decisions
    assert (traced.request_id, traced.timestamp, traced.input_length) == ("id-7", 7000, 9)
    assert (traced.policy, traced.output_length, traced.hash_ids) == ("prefix", 5, [1, 2])
    assert not DecisionLog().wants_trace()
