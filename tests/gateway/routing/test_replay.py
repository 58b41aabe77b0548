import itertools
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from headrace.cli.main import main
from headrace.errors import InvalidRequestError
from headrace.gateway.routing import POLICIES, PolicyName
from headrace.gateway.simulation import (
    AgentWork,
    EngineModel,
    Knowledge,
    Outcome,
    Setup,
    TraceRequest,
    agent_trace,
    read_trace,
    simulate,
)

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


@pytest.mark.parametrize(("knowledge", "kept"), [("events", 1.0), ("decisions", 0.9)])
def test_gateways_that_share_nothing_agree_where_nobody_is_busy(knowledge: Knowledge, kept: float) -> None:
    requests = chats(6, 8, gap_ms=120)
    alone = simulate(requests, _setup(num_gateways=1, knowledge=knowledge), draw=random.Random(3).randrange)
    apart = simulate(requests, _setup(num_gateways=4, knowledge=knowledge), draw=random.Random(3).randrange)

    assert alone.hit_ratio == alone.ceiling_ratio
    assert apart.hit_ratio >= kept * alone.hit_ratio
    assert (apart.num_gateways, apart.num_requests) == (4, len(requests))


def test_gateways_that_ask_engines_for_their_load_spread_it_better() -> None:
    requests = chats(60, 1, gap_ms=30.0)
    asking, deaf = (
        simulate(
            requests,
            replace(_setup(num_gateways=8), policy="least_loaded", load_interval_s=interval_s),
            draw=random.Random(3).randrange,
        )
        for interval_s in (0.05, 1e6)
    )

    assert asking.mean_ttft_s < deaf.mean_ttft_s


def test_a_burst_is_spread_worse_by_gateways_that_see_only_their_own_load() -> None:
    requests = chats(40, 1, gap_ms=0.0)
    alone, apart = (
        simulate(
            requests,
            replace(_setup(num_gateways=num_gateways), policy="least_loaded"),
            draw=random.Random(3).randrange,
        )
        for num_gateways in (1, 8)
    )

    assert apart.load_spread > alone.load_spread
    assert apart.mean_ttft_s > alone.mean_ttft_s


def _setup(*, num_gateways: int, knowledge: Knowledge = "events") -> Setup:
    roomy = replace(ENGINE, num_blocks=4000)
    return Setup(policy="prefix", num_endpoints=3, num_gateways=num_gateways, engine=roomy, knowledge=knowledge)


def test_what_is_computed_adds_up_over_the_endpoints() -> None:
    requests = chats(4, 3)
    outcome = replay(requests, "prefix", num_endpoints=3)

    num_tokens = sum(request.input_length for request in requests)
    assert len(outcome.loads) == 3
    assert sum(outcome.loads) == round(num_tokens * (1 - outcome.hit_ratio))
    assert outcome.ttft_quantiles_s == sorted(outcome.ttft_quantiles_s)


def made_up(seed: int, **fields: int) -> list[TraceRequest]:
    return agent_trace(AgentWork(num_sessions=5, **fields), uniform=random.Random(seed).random)


def test_agents_repeat_what_was_said_and_share_their_instructions() -> None:
    requests = made_up(1, num_kinds=1)
    by_session: dict[int, list[TraceRequest]] = {}
    for request in requests:
        by_session.setdefault(request.hash_ids[16] >> 20, []).append(request)

    assert len(by_session) == 5
    assert {tuple(request.hash_ids[:16]) for request in requests} == {tuple(range(-1, -17, -1))}
    for turns in by_session.values():
        for before, after in itertools.pairwise(turns):
            assert after.timestamp > before.timestamp
            assert after.hash_ids[: len(before.hash_ids)] == before.hash_ids or len(after.hash_ids) < len(
                before.hash_ids
            )
    assert all(request.input_length == 512 * len(request.hash_ids) for request in requests)


def test_a_made_up_trace_is_the_same_for_the_same_seed() -> None:
    assert made_up(7) == made_up(7) != made_up(8)


def test_the_command_makes_up_a_trace_and_draws_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "out.html"
    flags = [
        "--generate",
        "agentic",
        "--sessions",
        "1",
        "--endpoints",
        "2,4",
        "--gateways",
        "1,2",
        "--policy",
        "prefix",
    ]
    assert main(["replay", *flags, "--policy", "least_loaded", "--report", str(page)]) == 0

    text = page.read_text()
    printed = capsys.readouterr().out
    assert all(size in printed for size in ("2 endpoints", "2 endpoints, 2 gateways", "4 endpoints, 2 gateways"))
    assert text.count("<svg") == 9
    assert not re.search(r"(src|href|url)\s*[=(]", text)  # it needs nothing else
    assert ET.fromstring(re.search(r"<svg.*?</svg>", text, re.DOTALL)[0]) is not None


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "give a TRACE, or --generate agentic"),
        (["--generate", "agentic", "--gateways", "2,0"], "--gateways is 0"),
        (["--generate", "agentic", "--sessions", "-1"], "--sessions is -1"),
        (["--generate", "agentic", "--sessions", "1", "--report", "/nowhere/x.html"], "cannot be written"),
    ],
)
def test_what_cannot_be_made_up_is_refused(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", *flags]) == 2
    assert told in capsys.readouterr().err
