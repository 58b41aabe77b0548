"""In a real core: what a request asks of its tokens holds in any batch, in chunks, after preemptions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from headrace.engine.config import EngineArgs
from headrace.engine.core.engine_core import EngineCore
from headrace.engine.front.parallel_sampling import fan_out
from headrace.engine.model_config import load_model_config
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.structured_outputs import StructuredOutputsParams
from headrace.engine.wire.messages import AddRequest, TokenDelta, TokenLogprobs
from headrace.testing.core_driver import CoreDriver, add_request

MakeDriver = Callable[..., CoreDriver]

PROMPTS = [[(index * 37 + step * step * 5 + 3) % 160 for step in range(9 + 7 * index)] for index in range(5)]

RULES: list[dict[str, Any]] = [
    {"temperature": 0.9, "top_p": 0.8, "logit_bias": {7: 4.0, 9: -100.0}},
    {"temperature": 1.0, "allowed_token_ids": list(range(40)), "repetition_penalty": 1.3},
    {"temperature": 0.0, "frequency_penalty": 0.7, "presence_penalty": 0.4, "min_tokens": 5},
    {"temperature": 1.2, "top_k": 20, "min_p": 0.02, "logprobs": 3, "prompt_logprobs": 2},
    {"temperature": 1.0, "structured_outputs": StructuredOutputsParams(regex="[a-z ]{4,40}")},
]


def kv_bytes(directory: Path, *, num_blocks: int, block_size: int) -> int:
    return load_model_config(str(directory)).kv_values_per_token * 4 * block_size * num_blocks


def request(index: int, *, max_tokens: int = 12) -> AddRequest:
    params = SamplingParams(seed=index + 1, max_tokens=None, **RULES[index])
    message = add_request(str(index), PROMPTS[index], params=params, max_tokens=max_tokens)
    return msgspec.structs.replace(message, bad_words=((11,), (3, 4)))


class Recorder:
    """Drives a core and keeps the log probabilities that its deltas bring."""

    def __init__(self, driver: CoreDriver) -> None:
        self.driver = driver
        self.logprobs: dict[str, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}

    def run(self, *requests: AddRequest) -> dict[str, list[int]]:
        for message in requests:
            self.driver.add(message)
        while self.driver.core.has_work():
            for delta in self.driver.step():
                self._take(delta)
        return self.driver.run()

    def _take(self, delta: TokenDelta) -> None:
        self.logprobs.setdefault(delta.request_id, []).extend(delta.logprobs)
        if delta.prompt_logprobs:
            assert delta.request_id not in self.prompt_logprobs, "a prompt is told of once"
            self.prompt_logprobs[delta.request_id] = delta.prompt_logprobs


def alone(directory: Path, make_driver: MakeDriver) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for index in range(len(PROMPTS)):
        tokens |= Recorder(make_driver(directory)).run(request(index))
    return tokens


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"max_num_batched_tokens": 11, "max_num_seqs": 5},
        {"enable_prefix_caching": False, "max_num_seqs": 2},
        {"block_size": 4, "max_model_len": 60, "num_blocks": 15},
    ],
    ids=str,
)
def test_every_rule_gives_the_tokens_of_the_request_alone(
    args: dict[str, Any], tiny_model_dir: Path, make_driver: MakeDriver
) -> None:
    if num_blocks := args.pop("num_blocks", None):
        args["kv_cache_memory_bytes"] = kv_bytes(tiny_model_dir, num_blocks=num_blocks, block_size=4)
    driver = make_driver(tiny_model_dir, **args)
    together = Recorder(driver).run(*(request(index) for index in range(len(PROMPTS))))
    assert together == alone(tiny_model_dir, make_driver)
    assert "kv_cache_memory_bytes" not in args or driver.core.statistics().num_preemptions > 0
    assert not any(11 in tokens for tokens in together.values())


@pytest.mark.integration
def test_two_workers_give_the_tokens_of_one_under_every_rule(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir, tensor_parallel_size=2)
    try:
        recorder = Recorder(driver)
        together = recorder.run(*(request(index) for index in range(len(PROMPTS))))
        assert len(recorder.logprobs["3"]) == len(together["3"])
        assert len(recorder.prompt_logprobs["3"]) == len(PROMPTS[3]) - 1
    finally:
        driver.core.close()
    assert together == alone(tiny_model_dir, make_driver)


def reference_logprobs(directory: Path, token_ids: list[int]) -> np.ndarray:
    """Of every next token, by transformers, [tokens, vocabulary]."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([token_ids])).logits[0].double(), dim=-1).numpy()


@pytest.mark.parametrize(
    "args",
    [{}, {"max_num_batched_tokens": 7, "max_num_seqs": 2}, {"num_blocks": 24}],
    ids=["whole", "chunked", "preempted"],
)
def test_log_probabilities_equal_those_of_transformers(
    args: dict[str, Any], tiny_model_dir: Path, make_driver: MakeDriver
) -> None:
    if num_blocks := args.pop("num_blocks", None):
        memory = kv_bytes(tiny_model_dir, num_blocks=num_blocks, block_size=2)
        args |= {"block_size": 2, "max_model_len": 40, "kv_cache_memory_bytes": memory}
    recorder = Recorder(make_driver(tiny_model_dir, **args))
    params = SamplingParams(seed=5, logprobs=2, prompt_logprobs=2, temperature=1.3, presence_penalty=0.5)
    messages = [add_request(name, PROMPTS[1], params=params, max_tokens=10) for name in ("a", "b")]
    tokens = recorder.run(*messages)
    assert "block_size" not in args or recorder.driver.core.statistics().num_preemptions > 0
    for name in ("a", "b"):
        whole = PROMPTS[1] + tokens[name]
        expected = reference_logprobs(tiny_model_dir, whole)
        told = [*recorder.prompt_logprobs[name], *recorder.logprobs[name]]
        assert [one.token_ids[0] for one in told] == whole[1:]
        for row, token_id, one in zip(expected, whole[1:], told, strict=False):
            top = np.argsort(-row)[:2]
            assert one.token_ids[1:] == tuple(top)
            assert one.logprobs == pytest.approx([row[token_id], *row[top]], abs=2e-3)
            assert one.rank == int((row >= row[token_id] - 1e-9).sum())


def test_prompt_logprobs_do_not_read_the_prefix_cache(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    recorder = Recorder(make_driver(tiny_model_dir, block_size=4))
    recorder.run(add_request("before", PROMPTS[2]))
    hits = recorder.driver.core.statistics().prefix_cache_hits
    recorder.run(add_request("told", PROMPTS[2], params=SamplingParams(prompt_logprobs=0)))
    assert len(recorder.prompt_logprobs["told"]) == len(PROMPTS[2]) - 1
    assert recorder.driver.core.statistics().prefix_cache_hits == hits


def test_a_request_may_leave_the_prefix_cache_unread(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir, block_size=4)
    unread = SamplingParams(temperature=0.0, skip_reading_prefix_cache=True)
    for name, params in (("first", SamplingParams(temperature=0.0)), ("unread", unread)):
        driver.add(add_request(name, PROMPTS[2], params=params))
        driver.run()
    assert driver.core.statistics().prefix_cache_hits == 0
    assert driver.tokens["first"] == driver.tokens["unread"]


def test_completions_of_one_prompt_compute_it_once(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir, block_size=4)
    prompt = PROMPTS[4]
    messages = fan_out(add_request("r", prompt, params=SamplingParams(n=4, seed=9, max_tokens=None), max_tokens=6))
    for message in messages:
        driver.add(message)
    driver.run()
    num_blocks = (len(prompt) - 1) // 4
    assert driver.core.statistics().prefix_cache_hits == 3 * num_blocks * 4
    for index in range(4):
        single = make_driver(tiny_model_dir)
        params = SamplingParams(seed=9 + index, max_tokens=None)
        single.add(add_request("alone", prompt, params=params, max_tokens=6))
        assert driver.tokens[f"r.{index}"] == single.run()["alone"]


def test_completions_go_on_without_a_first_one_that_was_aborted(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir, max_num_batched_tokens=8, max_num_seqs=4)
    for message in fan_out(add_request("r", PROMPTS[4], params=SamplingParams(n=3), max_tokens=4)):
        driver.add(message)
    driver.step()
    driver.abort("r.0")
    driver.run()
    assert {name: end.finish_reason for name, end in driver.ends.items()} == {
        "r.0": "abort",
        "r.1": "length",
        "r.2": "length",
    }


def test_a_guided_answer_ends_when_its_grammar_is_complete(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir)
    params = SamplingParams(
        seed=3,
        ignore_eos=True,
        min_tokens=30,
        max_tokens=None,
        structured_outputs=StructuredOutputsParams(choice=["stone", "wheel"]),
    )
    driver.add(add_request("r", PROMPTS[0], params=params, max_tokens=40))
    tokens = driver.run()["r"]
    text = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json")).decode(tokens, skip_special_tokens=False)
    assert text in {"stone", "wheel"}
    assert (driver.ends["r"].finish_reason, driver.ends["r"].stop_reason) == ("stop", None)


def test_a_bad_grammar_ends_its_request_and_no_other(tiny_model_dir: Path, make_driver: MakeDriver) -> None:
    driver = make_driver(tiny_model_dir)
    driver.add(
        add_request("bad", [1], params=SamplingParams(structured_outputs=StructuredOutputsParams(json={"type": "x"})))
    )
    driver.add(add_request("good", PROMPTS[0], max_tokens=3))
    driver.run()
    assert (driver.ends["bad"].finish_reason, driver.ends["bad"].error_kind) == ("error", "InvalidRequestError")
    assert "structured_outputs.json" in (driver.ends["bad"].error or "")
    assert driver.ends["bad"].error_param == "structured_outputs.json"
    assert driver.ends["good"].finish_reason == "length"


def test_others_run_while_a_grammar_is_compiled_and_an_abort_ends_the_wait(tiny_model_dir: Path) -> None:
    import threading

    from headrace.engine.guided.grammar import GrammarCompiler

    gate = threading.Event()
    real = GrammarCompiler(str(tiny_model_dir), eos_token_ids=(2, 0))

    def compile_late(params: StructuredOutputsParams) -> Any:
        assert gate.wait(30)
        return real(params)

    config = EngineArgs(model=str(tiny_model_dir), cpu_threads=1, device="cpu").create_engine_config()
    driver = CoreDriver(EngineCore(config, compile_grammar=compile_late))
    wanted = SamplingParams(structured_outputs=StructuredOutputsParams(regex="[0-9]{2}"))
    for name in ("late", "gone"):
        driver.add(add_request(name, PROMPTS[1], params=wanted))
    driver.add(add_request("other", PROMPTS[0], max_tokens=3))
    while "other" not in driver.ends:
        driver.step()
    driver.abort("gone")
    assert driver.core.statistics().num_waiting == 1
    gate.set()
    driver.run()
    assert driver.ends["gone"].finish_reason == "abort"
    assert driver.ends["late"].finish_reason == "stop"
    driver.core.close()


def test_rules_that_leave_no_token_end_their_request_and_no_other(
    tiny_model_dir: Path, make_driver: MakeDriver
) -> None:
    driver = make_driver(tiny_model_dir)
    message = add_request("none", PROMPTS[0], params=SamplingParams(allowed_token_ids=[5]))
    driver.add(msgspec.structs.replace(message, bad_words=((5,),)))
    driver.add(add_request("good", PROMPTS[1], max_tokens=3))
    driver.run()
    assert driver.ends["none"].finish_reason == "error"
    assert "leave no token" in (driver.ends["none"].error or "")
    assert driver.ends["good"].finish_reason == "length"
