"""A tokenizer whose shortcuts an examiner compares: the same ids, and the reference only while it is needed."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from headrace.aio.bridge import make_async
from headrace.errors import TokenizationError
from headrace.tokenization import TokenizationService, TokenizationSettings, Tokenizer, load_tokenizer
from headrace.tokenization.compare import Check, Finding
from headrace.tokenization.deferred import DeferredTokenizer, is_at_hand
from headrace.tokenization.definition import Definition
from headrace.tokenization.examiner.examination import ExaminerError, Examiners
from headrace.tokenization.examiner.process import answers
from headrace.tokenization.examiner.wire import Admit, Compare, Compared, Facts, Refused, Result, Rules, Verdict
from headrace.tokenization.fuzz import fuzz_texts
from headrace.tokenization.huggingface import HuggingFaceTokenizer
from headrace.tokenization.load import read_tokenizer
from headrace.tokenization.segments import no_cuts
from headrace.tokenization.verify import AskExaminer

DEMO = Path(__file__).parents[2] / "models" / "demo"
DEADLINE_S = 20.0

DIES = (sys.executable, "-c", "raise SystemExit(3)")
HANGS = (sys.executable, "-c", "import signal; signal.pause()")
TALKS_NONSENSE = (
    sys.executable,
    "-c",
    r"import socket, sys; socket.socket(fileno=int(sys.argv[1])).sendall(b'\x01\x00\x00\x00\xc1')",
)


def demo_definition() -> Definition:
    definition = read_tokenizer(DEMO)
    assert isinstance(definition, Definition)
    return definition


def facts_of(definition: Definition) -> Facts:
    facts = next(answers(Admit(definition=definition, choice="reference", uses_cuts=False)))
    assert isinstance(facts, Facts)
    return facts


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():
            await asyncio.sleep(0.001)


# what an examiner answers


def test_the_facts_are_those_of_the_reference() -> None:
    reference = load_tokenizer(DEMO)
    assert isinstance(reference, HuggingFaceTokenizer)
    deferred = DeferredTokenizer(demo_definition(), facts_of(demo_definition()))

    for name in ("name", "fingerprint", "vocab_size", "eos_token_id", "max_token_bytes", "special_token_ids"):
        assert getattr(deferred, name) == getattr(reference, name), name
    assert deferred.added_tokens == reference.added_tokens
    assert deferred.cut_rules == reference.cut_rules
    messages = [{"role": "user", "content": "Hello"}]
    assert reference.chat_template is not None
    assert deferred.chat_template is not None
    assert deferred.chat_template.render(messages) == reference.chat_template.render(messages)
    assert not deferred.is_at_hand, "for none of this"


@pytest.mark.parametrize("name", ["gpt2", "qwen2.5", "llama2"])
def test_rules_are_the_same_after_their_way(name: str, real_tokenizer: Callable[[str], Tokenizer]) -> None:
    reference = real_tokenizer(name)
    assert isinstance(reference, HuggingFaceTokenizer)
    sent = msgspec.msgpack.encode(Rules.of(reference.cut_rules))
    assert msgspec.msgpack.decode(sent, type=Rules).made() == reference.cut_rules
    assert Rules.of(no_cuts("none")).made() == no_cuts("none")


def test_the_verdict_is_that_of_a_comparison(tiny_tokenizer_json: bytes) -> None:
    tiny = Definition(name="tiny", tokenizer_json=tiny_tokenizer_json)
    facts, verdict = answers(Admit(definition=tiny, choice="auto", uses_cuts=True))
    assert isinstance(facts, Facts)
    assert isinstance(verdict, Verdict)
    assert not verdict.is_accelerated
    assert "does not support tiny" in verdict.encoder_reason
    assert verdict.rules.pattern is None


def test_what_cannot_be_loaded_is_refused_in_the_words_of_loading() -> None:
    broken = Definition(name="broken", tokenizer_json=b"{}")
    with pytest.raises(TokenizationError) as error:
        broken.load()
    assert list(answers(Admit(definition=broken, choice="auto", uses_cuts=True))) == [
        Refused(message=error.value.message)
    ]


def test_results_are_compared_with_the_reference() -> None:
    reference = load_tokenizer(DEMO)
    [token_ids] = reference.encode_batch(["Hello there"], add_special_tokens=False)
    right = Check("Hello there", token_ids, reference, reference, no_cuts("none"), add_special_tokens=False)
    wrong = Check("Hello there", token_ids[1:], reference, reference, no_cuts("none"), add_special_tokens=False)

    [answer] = answers(Compare(definition=demo_definition(), results=[Result.of(right), Result.of(wrong)]))
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=Compared)
    assert sent.findings == [None, Finding("cache", "Hello there")]


# the tokenizer that is deferred


def test_a_deferred_tokenizer_is_the_reference_whenever_it_is_made() -> None:
    reference = load_tokenizer(DEMO)
    deferred = DeferredTokenizer(demo_definition(), facts_of(demo_definition()))
    texts = list(fuzz_texts(50, seed=7, special_tokens=deferred.added_tokens))
    for _ in range(2):
        assert not is_at_hand(deferred)
        for one, other in zip(
            deferred.encode_batch(texts, add_special_tokens=True),
            reference.encode_batch(texts, add_special_tokens=True),
            strict=True,
        ):
            assert np.array_equal(one, other)
            assert deferred.decode(one, skip_special_tokens=False) == reference.decode(one, skip_special_tokens=False)
            assert deferred.token_strings(one) == reference.token_strings(one)
        assert is_at_hand(deferred)
        deferred.let_go()
    decoder = deferred.incremental_decoder(skip_special_tokens=False)
    ids = reference.encode_batch(["Hello"], add_special_tokens=False)[0].tolist()
    assert decoder.push(ids) + decoder.finish() == "Hello"


# real examiners


@pytest.mark.integration
def test_an_examiner_answers_and_ends() -> None:
    examiners = Examiners()
    examination = examiners.start(Admit(definition=demo_definition(), choice="reference", uses_cuts=True))
    assert examination.receive(Facts) == facts_of(demo_definition())
    assert examination.receive(Verdict).encoder_reason == "chosen by the settings"
    with pytest.raises(ExaminerError, match="exited with status 0"):
        examination.receive(Verdict)
    examiners.finish(examination)
    assert "num_running=0, num_started=1" in repr(examiners)


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has SCHED_IDLE")
@pytest.mark.parametrize("niceness", [0, 10])
def test_an_examiner_that_is_in_no_hurry_makes_way_at_once(niceness: int) -> None:
    examiners = Examiners()
    question = Admit(definition=demo_definition(), choice="reference", uses_cuts=True)
    examination = examiners.start(question, niceness=niceness)
    examination.receive(Facts)
    pid = examination._popen.pid
    nice_of_us = os.getpriority(os.PRIO_PROCESS, 0)
    expected = (os.SCHED_IDLE, min(19, nice_of_us + niceness)) if niceness else (os.sched_getscheduler(0), nice_of_us)
    assert (os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid)) == expected
    examiners.finish(examination)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (DIES, "gave no answer|exited with status 3"),
        (HANGS, "gave no answer"),
        (TALKS_NONSENSE, "gave no answer"),
        (("/nowhere/at-all",), "cannot be started"),
    ],
)
def test_an_examiner_that_gives_no_answer_is_an_error_and_leaves_nothing(command: tuple[str, ...], words: str) -> None:
    examiners = Examiners(command=command, timeout_s=1.0)
    with pytest.raises(ExaminerError, match=words):
        examiners.ask(Admit(definition=demo_definition(), choice="auto", uses_cuts=True), Facts)
    assert "num_running=0" in repr(examiners)


@pytest.mark.integration
def test_closing_ends_those_that_run_and_starts_no_more() -> None:
    examiners = Examiners(command=HANGS)
    question = Admit(definition=demo_definition(), choice="auto", uses_cuts=True)
    examination = examiners.start(question)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            examination.receive(Facts)
        except ExaminerError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    examiners.close()
    thread.join(DEADLINE_S)
    assert len(errors) == 1
    examiners.finish_all()
    assert examination._popen.returncode is not None
    with pytest.raises(ExaminerError, match="closed"):
        examiners.start(question)


# the service with one


@pytest.mark.integration
async def test_ids_are_exact_before_the_verdict_and_after_and_the_reference_goes_and_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("fastokens")
    reference = load_tokenizer(DEMO)
    texts = list(fuzz_texts(40, seed=11, special_tokens=()))
    expected = [ids.tolist() for ids in reference.encode_batch(texts, add_special_tokens=True)]
    threads: list[threading.Thread] = []
    load = Definition.load

    def note_thread(definition: Definition) -> HuggingFaceTokenizer:
        threads.append(threading.current_thread())
        return load(definition)

    monkeypatch.setattr(Definition, "load", note_thread)
    async with TokenizationService(TokenizationSettings(verify_share=0)) as service:
        deferred = await service.load("m", DEMO, keeps_reference=False)
        assert isinstance(deferred, DeferredTokenizer)
        assert [(await service.encode(text, model="m")).token_ids.tolist() for text in texts] == expected
        await service.wait_admitted("m")
        assert service._models.encoder("m").is_accelerated
        assert [(await service.encode(text, model="m")).token_ids.tolist() for text in texts] == expected
        await until(lambda: not deferred.is_at_hand)
        for ids in expected:
            assert await service.decode(ids, model="m") == reference.decode(ids, skip_special_tokens=False)
        assert deferred.is_at_hand
    assert threads
    assert threading.current_thread() not in threads, "which has the event loop"


@pytest.mark.integration
async def test_without_an_examiner_the_comparison_is_made_here(caplog: pytest.LogCaptureFixture) -> None:
    async with TokenizationService() as service:
        service._models._examiners = Examiners(command=DIES)
        tokenizer = await service.load("m", DEMO, keeps_reference=False)
        assert isinstance(tokenizer, HuggingFaceTokenizer)
        await service.wait_admitted("m")
        assert service._models.encoder("m").encoder_reason != "not compared yet"
        assert "in this process" in caplog.text


@pytest.mark.integration
async def test_what_cannot_be_loaded_says_so_as_ever(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizationError) as error:
        load_tokenizer(tmp_path)
    async with TokenizationService() as service:
        with pytest.raises(TokenizationError) as same:
            await service.load("m", tmp_path, keeps_reference=False)
    assert same.value.message == error.value.message


@pytest.mark.integration
async def test_results_are_compared_by_an_examiner_where_the_reference_is_not_at_hand() -> None:
    pytest.importorskip("fastokens")
    registry = CollectorRegistry()
    name = "headrace_tokenization_verifications_total"
    async with TokenizationService(TokenizationSettings(verify_share=1.0), registry=registry) as service:
        deferred = await service.load("m", DEMO, keeps_reference=False)
        await service.wait_admitted("m")
        await service.encode("to be compared", model="m")
        await until(lambda: bool(registry.get_sample_value(name, {"model": "m", "found": "equal"})))
        assert not is_at_hand(deferred)
        assert "num_started=2" in repr(service._examiners)


@pytest.mark.integration
async def test_wrong_ids_are_found_by_an_examiner_and_the_reference_serves_again() -> None:
    pytest.importorskip("fastokens")
    [expected] = load_tokenizer(DEMO).encode_batch(["What is asked"], add_special_tokens=True)
    async with TokenizationService(TokenizationSettings(verify_share=1.0)) as service:
        await service.load("m", DEMO, keeps_reference=False)
        await service.wait_admitted("m")
        encoder = service._models.encoder("m")
        right = encoder.encode_one
        assert right is not None
        encoder.encode_one = lambda text, adds: right(text, adds)[:-1]
        wrong = await service.encode("What is asked", model="m")
        assert wrong.token_ids.tolist() == expected[:-1].tolist()
        await until(lambda: not encoder.is_accelerated)
        assert (await service.encode("What is asked", model="m")).token_ids.tolist() == expected.tolist()


@pytest.mark.integration
async def test_results_that_no_examiner_compared_are_tried_again_after_a_rest_only() -> None:
    pytest.importorskip("fastokens")
    async with TokenizationService(TokenizationSettings(verify_share=1.0)) as service:
        await service.load("m", DEMO, keeps_reference=False)
        await service.wait_admitted("m")
        broken = Examiners(command=DIES)
        service._texts._verifier._ask_examiner = AskExaminer(broken)
        for number in range(20):
            await service.encode(f"text {number}", model="m")
            await until(lambda: not service._upkeep.statistics().num_running and not len(service._upkeep))
        assert broken.num_started == 1


@pytest.mark.integration
async def test_an_examiner_that_dies_before_its_verdict_is_replaced_by_a_comparison_here() -> None:
    pytest.importorskip("fastokens")
    async with TokenizationService() as service:
        tokenizer, examination = await make_async(service._models.load_deferred)(DEMO)
        assert examination is not None
        examination.end()
        service._models.register("m", tokenizer, examination=examination)
        await service.wait_admitted("m")
        assert service._models.encoder("m").is_accelerated
        await until(lambda: not is_at_hand(tokenizer))


# what an idle process has loaded

_IDLE = f"""
import asyncio, sys
import headrace.cli.main, headrace.cli.gateway, headrace.gateway.run
from headrace.tokenization import TokenizationService

async def main():
    async with TokenizationService() as service:
        tokenizer = await service.load("m", {str(DEMO)!r}, keeps_reference=False)
        await service.wait_admitted("m")
        assert service._models.encoder("m").is_accelerated, service._models.encoder("m").encoder_reason
        await service.encode("The first request needs no more.", model="m")

asyncio.run(main())
heavy = "tokenizers transformers torch huggingface_hub rich opentelemetry redis kubernetes_asyncio".split()
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.integration
def test_an_idle_gateway_has_loaded_nothing_heavy() -> None:
    pytest.importorskip("fastokens")
    done = subprocess.run([sys.executable, "-c", _IDLE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
