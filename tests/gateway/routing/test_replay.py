import json
import random
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.errors import InvalidRequestError
from headrace.gateway.routing import POLICIES, PolicyName
from headrace.gateway.simulation import EngineModel, Knowledge, Outcome, Setup, TraceRequest, read_trace, simulate

ENGINE = EngineModel(
    num_blocks=40, block_size=64, prefill_tokens_per_s=10_000, decode_step_s=0.005, decode_step_per_request_s=0.0005
)


def chats(num_chats: int, num_turns: int, *, gap_ms: float = 500.0) -> list[TraceRequest]:
    """Chats that take turns; each turn repeats what was said and adds a block."""
    return [
        TraceRequest(
            timestamp=(turn * num_chats + chat) * gap_ms,
            input_length=512 * (turn + 1),
            output_length=10,
            hash_ids=[chat * 1000 + at for at in range(turn + 1)],
        )
        for turn in range(num_turns)
        for chat in range(num_chats)
    ]


def replay(
    requests: list[TraceRequest], policy: PolicyName, *, num_endpoints: int = 2, knowledge: Knowledge = "events"
) -> Outcome:
    setup = Setup(policy=policy, num_endpoints=num_endpoints, engine=ENGINE, knowledge=knowledge)
    return simulate(requests, setup, draw=random.Random(3).randrange)


@pytest.mark.parametrize("knowledge", ["events", "decisions"])
def test_prefix_routing_reaches_the_ceiling_where_the_chats_fit(knowledge: Knowledge) -> None:
    outcome = replay(chats(2, 4), "prefix", knowledge=knowledge)

    assert outcome.hit_ratio == outcome.ceiling_ratio == outcome.unbounded_ratio > 0.5


def test_round_robin_computes_what_another_endpoint_has() -> None:
    requests = chats(3, 5)

    assert replay(requests, "round_robin").hit_ratio < replay(requests, "prefix").hit_ratio
    assert replay(requests, "round_robin").mean_ttft_s > replay(requests, "prefix").mean_ttft_s


def test_one_endpoint_is_its_own_ceiling() -> None:
    outcome = replay(chats(6, 3, gap_ms=5000), "prefix", num_endpoints=1)

    assert outcome.hit_ratio == pytest.approx(outcome.ceiling_ratio)
    assert outcome.hit_ratio < outcome.unbounded_ratio


def test_an_idle_engine_answers_in_the_time_that_the_prompt_takes() -> None:
    outcome = replay(chats(1, 1), "least_loaded")

    assert outcome.mean_ttft_s == pytest.approx(512 / 10_000)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_of_the_trace_is_answered_once(policy: PolicyName) -> None:
    outcome = replay(chats(4, 3, gap_ms=1), policy)

    assert outcome.num_requests == 12
    assert 0 <= outcome.hit_ratio <= outcome.unbounded_ratio


def test_a_line_that_is_no_request_is_refused_by_number() -> None:
    with pytest.raises(InvalidRequestError, match="line 2"):
        read_trace([b'{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[]}', b'{"timestamp":"x"}'])


def write_trace(path: Path) -> Path:
    lines = [
        {"timestamp": at * 100 + 7, "input_length": 1024, "output_length": 5, "hash_ids": [at % 2, 10 + at]}
        for at in range(8)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_command_prints_a_table_of_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(write_trace(tmp_path / "t.jsonl")), "--policy", "all", "--endpoints", "2"]) == 0

    printed = capsys.readouterr().out
    assert all(policy in printed for policy in POLICIES)
    assert "ceiling of this capacity" in printed


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(write_trace(tmp_path / "t.jsonl")), "--json", "--requests", "6"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert (report["num_requests"], [one["policy"] for one in report["outcomes"]]) == (6, ["prefix"])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--endpoints", "0"], "--endpoints is 0"),
        (["--block-size", "100"], "--block-size 100 does not divide"),
        (["--requests", "0"], "holds no request"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    flags: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(write_trace(tmp_path / "t.jsonl")), *flags]) == 2
    assert told in capsys.readouterr().err


def test_a_trace_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "nowhere.jsonl"]) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err
