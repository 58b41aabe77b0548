"""A request with an adapter gets the tokens of the model with that adapter merged, whoever shares its steps."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.lora_request import LoRARequest
from headrace.testing.core_driver import CoreDriver, add_request

MakeDriver = Callable[..., CoreDriver]

NAMES = ("wide", "attention", "mlp", "output")
PROMPTS = [[(index * 37 + step * step * 5 + 3) % 160 for step in range(1 + 13 * index)] for index in range(6)]


def lora_driver(adapted: Any, make_driver: MakeDriver, **args: Any) -> CoreDriver:
    return make_driver(adapted.base.directory, **{"enable_lora": True, **args})


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_gives_the_tokens_of_the_merged_model(name: str, adapted: Any, make_driver: MakeDriver) -> None:
    driver = lora_driver(adapted, make_driver)
    for index, prompt in enumerate(PROMPTS):
        driver.add(add_request(str(index), prompt, lora=adapted.request(name)))
    expected = {str(index): adapted.greedy(name, prompt) for index, prompt in enumerate(PROMPTS)}
    assert driver.run() == expected
    assert expected != {str(index): adapted.greedy(None, prompt) for index, prompt in enumerate(PROMPTS)}


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"max_loras": 1},
        {"max_loras": 2, "max_cpu_loras": 2},
        {"max_num_batched_tokens": 9, "max_num_seqs": 6},
        {"block_size": 4, "max_num_seqs": 3},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_base_and_several_adapters_share_a_batch(args: dict[str, Any], adapted: Any, make_driver: MakeDriver) -> None:
    driver = lora_driver(adapted, make_driver, **args)
    expected = {}
    for number in range(12):
        name = (None, *NAMES)[number % 5]
        prompt = PROMPTS[number % len(PROMPTS)]
        lora = None if name is None else adapted.request(name)
        driver.add(add_request(str(number), prompt, lora=lora))
        expected[str(number)] = adapted.greedy(name, prompt)
    assert driver.run() == expected


def test_preempted_requests_get_their_adapter_again(adapted: Any, make_driver: MakeDriver) -> None:
    bytes_per_block = 2 * 2 * 2 * 16 * 4 * 4
    driver = lora_driver(
        adapted, make_driver, max_loras=2, block_size=4, max_model_len=40, kv_cache_memory_bytes=10 * bytes_per_block
    )
    expected = {}
    for number in range(8):
        name = NAMES[number % 3]
        prompt = PROMPTS[1][:9]
        driver.add(add_request(str(number), prompt, lora=adapted.request(name)))
        expected[str(number)] = adapted.greedy(name, prompt)
    assert driver.run() == expected
    assert driver.core.statistics().num_preemptions > 0


def test_the_prefix_cache_keeps_adapters_apart(adapted: Any, make_driver: MakeDriver) -> None:
    driver = lora_driver(adapted, make_driver, block_size=4)
    prompt = PROMPTS[3]
    num_whole = (len(prompt) - 1) // 4 * 4
    for round_number, num_cached in ((1, 0), (2, num_whole)):
        for name in (None, "wide", "attention"):
            request_id = f"{name} {round_number}"
            lora = None if name is None else adapted.request(name)
            driver.add(add_request(request_id, prompt, lora=lora))
            assert driver.run()[request_id] == adapted.greedy(name, prompt)
            assert driver.ends[request_id].num_cached_tokens == num_cached


def test_an_adapter_with_new_files_at_the_same_place_finds_no_block_of_the_old_ones(
    adapted: Any, make_driver: MakeDriver, tmp_path: Path
) -> None:
    driver = lora_driver(adapted, make_driver, block_size=4)
    place = LoRARequest("renewed", 9, str(tmp_path / "adapter"))
    for name in ("wide", "attention"):
        shutil.copytree(adapted.paths[name], place.lora_path, dirs_exist_ok=True)
        driver.add(add_request(name, PROMPTS[3], lora=place))
        assert driver.run()[name] == adapted.greedy(name, PROMPTS[3])
        assert driver.ends[name].num_cached_tokens == 0
        assert driver.core.operations.remove_lora(place.lora_int_id)


def test_requests_that_run_keep_their_blocks_when_their_adapter_is_removed(
    adapted: Any, make_driver: MakeDriver
) -> None:
    driver = lora_driver(adapted, make_driver, block_size=4)
    driver.add(add_request("before", PROMPTS[2], lora=adapted.request("wide")))
    driver.step()
    driver.core.operations.remove_lora(adapted.request("wide").lora_int_id)
    driver.add(add_request("after", PROMPTS[2], lora=adapted.request("wide")))
    expected = adapted.greedy("wide", PROMPTS[2])
    assert driver.run() == {"before": expected, "after": expected}


def test_an_adapter_in_half_precision_begins_as_the_merged_model(adapted: Any, make_driver: MakeDriver) -> None:
    driver = lora_driver(adapted, make_driver, dtype="bfloat16")
    for index, prompt in enumerate(PROMPTS):
        driver.add(add_request(str(index), prompt, lora=adapted.request("wide")))
    tokens = driver.run()
    num_alike = sum(tokens[str(index)][0] == adapted.greedy("wide", p)[0] for index, p in enumerate(PROMPTS))
    assert num_alike >= len(PROMPTS) - 1
