"""Every family, in every form of its config, gives transformers' greedy tokens, whatever the engine does meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.reference_models import FAMILIES

from headrace.engine.model_config import load_model_config
from headrace.testing.core_driver import CoreDriver, add_request

PROMPTS = {
    "one token": [42],
    "short": [5, 9, 3],
    "long": [(7 * i * i + 11 * i) % 160 for i in range(90)],
    "same beginning": [*((7 * i * i + 11 * i) % 160 for i in range(50)), 4, 4, 4],
}

SCENARIOS: dict[str, dict[str, Any]] = {
    "batch": {},
    "chunked": {"max_num_batched_tokens": 13, "max_num_seqs": 4},
    "one by one, small blocks": {"max_num_seqs": 1, "block_size": 5},
    "without prefix cache": {"enable_prefix_caching": False},
    "without kernels": {"cpu_kernels": "off", "max_num_batched_tokens": 40, "max_num_seqs": 4},
}

MakeDriver = Callable[..., CoreDriver]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers(
    family: str, scenario: str, make_reference: Callable[[str], Any], make_driver: MakeDriver
) -> None:
    reference = make_reference(family)
    driver = make_driver(reference.directory, dtype="float32", **SCENARIOS[scenario])
    for name, prompt in PROMPTS.items():
        driver.add(add_request(name, prompt))
    assert driver.run() == {name: reference.greedy(prompt) for name, prompt in PROMPTS.items()}


@pytest.mark.parametrize("cpu_kernels", ["auto", "off"])
@pytest.mark.parametrize("family", FAMILIES)
def test_preemption_and_prefix_hits_change_nothing(
    family: str, cpu_kernels: str, make_reference: Callable[[str], Any], make_driver: MakeDriver
) -> None:
    reference = make_reference(family)
    block_bytes = load_model_config(str(reference.directory)).kv_values_per_token * 4 * 4
    driver = make_driver(
        reference.directory,
        dtype="float32",
        cpu_kernels=cpu_kernels,
        block_size=4,
        max_model_len=80,
        kv_cache_memory_bytes=20 * block_bytes,
    )
    prompts = [PROMPTS["long"][:length] for length in (9, 11, 13, 15, 17)]
    for index, prompt in enumerate(prompts):
        driver.add(add_request(str(index), prompt))
    assert driver.run() == {str(index): reference.greedy(prompt) for index, prompt in enumerate(prompts)}
    assert driver.core.statistics().num_preemptions > 0
    driver.add(add_request("again", prompts[-1]))
    assert driver.run()["again"] == reference.greedy(prompts[-1])
    assert driver.ends["again"].num_cached_tokens > 0


def test_the_random_models_answers_depend_on_the_prompt(make_reference: Callable[[str], Any]) -> None:
    for family in FAMILIES:
        answers = [make_reference(family).greedy(prompt) for prompt in PROMPTS.values()]
        assert len({tuple(answer) for answer in answers}) == len(answers)
        assert sum(len(set(answer)) for answer in answers) > 16, f"{family} repeats itself"
