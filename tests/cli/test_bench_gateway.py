import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from tokenizers import Tokenizer

from headrace.cli.benchmarks import machine
from headrace.cli.benchmarks.engine_measures import spread
from headrace.cli.benchmarks.gateway.bare_relay import counter
from headrace.cli.benchmarks.gateway.contenders import (
    OURS,
    PEERS,
    Contender,
    Place,
    bare_relay,
    counting_relay,
    new_keys_file,
    ours,
)
from headrace.cli.benchmarks.gateway.figures import BARS, PARTS, Bar, Row, check
from headrace.cli.benchmarks.gateway.job import Job, Outcome, Work
from headrace.cli.benchmarks.gateway.load import Requests
from headrace.cli.benchmarks.gateway.process import PinnedProcess, free_ports, run_job, start_upstream
from headrace.cli.benchmarks.gateway.report import GatewayReport
from headrace.cli.benchmarks.gateway.tables import show
from headrace.cli.benchmarks.gateway.upstream import answer_of
from headrace.cli.benchmarks.gateway.workload import MODEL, Shape, Workload, write
from headrace.cli.main import main
from headrace.gateway.admission.key_file import read_keys
from headrace.tokenization.load import load_tokenizer

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
KEYS = ["hr-one", "hr-two"]


def row(contender: str, value: float, *, part: str = "small", figure: str = "rate") -> Row:
    return Row(part=part, contender=contender, figures={figure: spread([value])})


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(DEMO, api_keys=KEYS)


# bars


def test_a_bar_over_several_peers_is_measured_over_the_best_of_those_that_are_there() -> None:
    bar = Bar(part="small", figure="rate", over=("smg", "vllm-router", "absent"), limit=1.5, is_at_least=True)
    (found,) = check([bar], [row(OURS, 30.0), row("smg", 10.0), row("vllm-router", 20.0)])
    assert (found.over, found.value, found.is_met) == ("vllm-router", 1.5, True)


def test_a_bar_of_ours_alone_has_an_upper_limit() -> None:
    bar = Bar(part="start", figure="idle", limit=90.0)
    (met,) = check([bar], [row(OURS, 90.0, part="start", figure="idle")])
    (missed,) = check([bar], [row(OURS, 90.5, part="start", figure="idle")])
    assert (met.is_met, missed.is_met) == (True, False)


def test_a_bar_whose_peers_are_missing_is_neither_met_nor_missed() -> None:
    (found,) = check([Bar(part="small", figure="rate", over=("smg",), limit=1.5)], [row(OURS, 30.0)])
    assert found.value is None
    assert found.is_met is None


def test_bars_of_parts_that_were_not_measured_are_left_out() -> None:
    assert {bar.part for bar in check(BARS, [row(OURS, 1.0)])} == {"small"}


def test_every_bar_is_about_a_figure_and_peers_that_there_are() -> None:
    assert all(bar.figure in PARTS[bar.part] and set(bar.over) <= set(PEERS) for bar in BARS)


def test_the_tables_show_figures_bars_and_what_went_wrong() -> None:
    rows = [row(OURS, 3000.0), msgspec.structs.replace(row("smg", 1.0), figures={}, error="it answered 400")]
    report = GatewayReport(
        machine=machine.describe(),
        tokenizer="demo",
        is_quick=True,
        num_rounds=1,
        gateway_core=0,
        load_core=1,
        versions={OURS: "1", "smg": "2"},
        rows=rows,
        bars=check(BARS, rows),
        notes=["litellm is not installed"],
        elapsed_s=1.0,
    )
    console = Console(file=io.StringIO(), width=160)
    show(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]  # of a StringIO
    assert all(word in text for word in ("3,000", "not measured", "it answered 400", "litellm is not installed"))
    assert msgspec.json.decode(msgspec.json.encode(report), type=GatewayReport) == report


# requests


def test_requests_say_truly_how_many_tokens_their_prompts_have(workload: Workload) -> None:
    work = workload.make("some", Shape(num_chats=3, body_bytes=1500, num_turns=2, turn_chars=80))
    tokenizer = load_tokenizer(DEMO)
    assert tokenizer.chat_template is not None
    for number in (0, 1, 2, 1000):
        chat = Requests(work, first_chat=number).next_chat()
        for _ in range(2):
            request, answer = chat.next() or (b"", b"")
            body = msgspec.json.decode(request.partition(b"\r\n\r\n")[2])
            text = tokenizer.chat_template.render(body["messages"])
            (ids,) = tokenizer.encode_batch([text], add_special_tokens=False)
            assert body["seed"] == len(ids)
            assert answer == answer_of(MODEL, num_prompt_tokens=len(ids))


def test_a_chat_that_is_sent_again_has_other_words_unless_it_is_to_be_known(workload: Workload) -> None:
    new = workload.make("some", Shape(num_chats=2, body_bytes=1000))
    again = msgspec.structs.replace(new, is_new_each_time=False)
    assert len({_first(new, number) for number in range(6)}) == 6
    assert len({_first(again, number) for number in range(6)}) == 2


def _first(work: Work, number: int) -> bytes:
    request, _ = Requests(work, first_chat=number).next_chat().next() or (b"", b"")
    return request


def test_the_length_of_a_request_is_that_of_its_body(workload: Workload) -> None:
    head, _, body = _first(workload.make("some", Shape(num_chats=1, body_bytes=1000)), 7).partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head.split(b"\r\n")


def test_the_keys_of_the_benchmark_are_ones_that_the_gateway_reads(tmp_path: Path) -> None:
    keys = new_keys_file(tmp_path / "keys.yaml")
    assert len(read_keys(tmp_path / "keys.yaml")) == len(keys)


@pytest.mark.parametrize("flags", [["--only", "nothing"], ["--peers", "nobody"], ["--rounds", "0"]])
def test_what_cannot_be_measured_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gateway", *flags]) == 2
    assert flags[0] in capsys.readouterr().err


# the load and the fake endpoint, as processes


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    (port,) = free_ports(1)
    with start_upstream([port], core=_core(), log=tmp_path_factory.mktemp("endpoint") / "log"):
        yield port


def _core() -> int:
    return min(os.sched_getaffinity(0))


def _place(endpoint: int, folder: Path) -> Place:
    """In front of one endpoint."""
    port, spare_port = free_ports(2)
    return Place(
        port=port,
        spare_port=spare_port,
        upstream_ports=[endpoint],
        folder=folder,
        tokenizer=DEMO,
        peers_root=folder,
    )


def _do(job: Job, work: Work, folder: Path) -> Outcome:
    write(work, folder / "work")
    return run_job(msgspec.structs.replace(job, work=str(folder / "work")), core=_core())


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["closed", "open"])
def test_the_load_counts_answers_that_are_right(kind: str, endpoint: int, workload: Workload, tmp_path: Path) -> None:
    work = workload.make("some", Shape(num_chats=2, body_bytes=1500, num_turns=2))
    job = Job(kind=kind, port=endpoint, num_connections=3, warm_up_s=0.1, measured_s=1.0, rate=200.0)  # type: ignore[arg-type]  # a parameter
    done = _do(job, work, tmp_path)
    assert (done.error, done.num_done > 0, done.times is not None) == (None, True, True)
    assert kind == "open" or done.later_times is not None


@pytest.mark.integration
def test_the_load_notices_an_answer_that_is_not_what_it_should_be(
    endpoint: int, workload: Workload, tmp_path: Path
) -> None:
    work = workload.make("some", Shape(num_chats=1, body_bytes=1000))
    other = [[msgspec.structs.replace(turn, answer=b"another answer") for turn in chat] for chat in work.chats]
    done = _do(Job(port=endpoint, measured_s=0.2), msgspec.structs.replace(work, chats=other), tmp_path)
    assert done.error is not None
    assert "chatcmpl-bench" in done.error


@pytest.mark.integration
def test_streams_come_whole_with_the_times_of_their_events(endpoint: int, workload: Workload, tmp_path: Path) -> None:
    work = workload.make("some", Shape(num_chats=1, body_bytes=800, num_events=200))
    job = Job(kind="streams", port=endpoint, num_connections=5, num_events=200, warm_up_s=0.1, measured_s=1.0)
    done = _do(job, work, tmp_path)
    assert (done.error, done.num_done > 0, done.later_times is not None) == (None, True, True)


@pytest.mark.integration
@pytest.mark.slow
def test_our_gateway_answers_the_load_byte_by_byte(endpoint: int, tmp_path: Path) -> None:
    keys = new_keys_file(tmp_path / "keys.yaml")
    work = Workload(DEMO, api_keys=keys).make("some", Shape(num_chats=4, body_bytes=1500))
    place = _place(endpoint, tmp_path)
    contender = ours(place, keys_file=tmp_path / "keys.yaml", version="0")
    with PinnedProcess(OURS, contender.command, core=_core(), log=tmp_path / "log", environment={}) as gateway:
        gateway.wait_until_answers(place.port, path="/health", timeout_s=30.0)
        done = _do(Job(port=place.port, num_connections=4, measured_s=1.0, pids=gateway.pids), work, tmp_path)
    assert (done.error, done.num_done > 0) == (None, True)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "make"), [("closed", bare_relay), ("streams", bare_relay), ("closed", counting_relay)]
)
def test_the_bare_relays_pass_on_what_the_endpoint_answers(
    kind: str, make: Callable[[Place], Contender], endpoint: int, workload: Workload, tmp_path: Path
) -> None:
    work = workload.make("some", Shape(num_chats=2, body_bytes=70_000, num_events=200 if kind == "streams" else None))
    place = _place(endpoint, tmp_path)
    command = make(place).command
    with PinnedProcess("bare relay", command, core=_core(), log=tmp_path / "log", environment={}) as relay:
        relay.wait_until_answers(place.port, path="/health", timeout_s=30.0)
        job = Job(kind=kind, port=place.port, num_connections=3, num_events=200, warm_up_s=0.1, measured_s=1.0)  # type: ignore[arg-type]  # a parameter
        done = _do(job, work, tmp_path)
    assert (done.error, done.num_done > 0) == (None, True)


def test_the_counting_relay_counts_as_the_library_does(workload: Workload) -> None:
    templates = [chat[0] for chat in workload.make("some", Shape(num_chats=3, body_bytes=2000)).chats]
    library = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    rendered = load_tokenizer(DEMO).chat_template
    assert rendered is not None
    for template in templates:
        request = template.head + template.tail
        messages = json.loads(request[request.index(b"\r\n\r\n") + 4 :])["messages"]
        assert counter(DEMO)(request) == len(library.encode(rendered.render(messages), add_special_tokens=False).ids)


def test_a_peer_that_is_not_installed_is_none(tmp_path: Path) -> None:
    place = Place(
        port=1, spare_port=2, upstream_ports=[3], folder=tmp_path, tokenizer=DEMO, peers_root=tmp_path / "none"
    )
    assert [name for name, make in PEERS.items() if make(place) is not None] == ["bare relay", "counting relay"]
