"""Every family gives transformers' greedy tokens, from the files that transformers writes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace.engine.model_config import RopeConfig
from headrace.engine.models.rotary import RotaryEmbedding
from headrace.errors import SettingsError
from headrace.testing.core_driver import CoreDriver, add_request

FAMILIES = [
    "llama",
    "llama-biased",
    "llama-llama3-rope",
    "llama-linear-rope",
    "llama-one-kv-head",
    "mistral",
    "qwen2",
    "qwen3",
]
PROMPTS = {"short": [5, 9, 3], "one token": [42], "long": [(7 * i * i + 11 * i) % 160 for i in range(90)]}


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers(
    family: str, make_reference: Callable[[str], Any], make_driver: Callable[..., CoreDriver]
) -> None:
    reference = make_reference(family)
    driver = make_driver(reference.directory)
    for name, prompt in PROMPTS.items():
        driver.add(add_request(name, prompt))
    assert driver.run() == {name: reference.greedy(prompt) for name, prompt in PROMPTS.items()}


def test_the_random_models_answers_depend_on_the_prompt(llama: Any) -> None:
    answers = [llama.greedy(prompt) for prompt in PROMPTS.values()]
    assert all(len(set(answer)) > 8 for answer in answers)
    assert len({tuple(answer) for answer in answers}) == len(answers)


def test_sharded_weights_are_read_by_their_index(llama: Any) -> None:
    assert (llama.directory / "model.safetensors.index.json").exists()
    assert len(list(llama.directory.glob("*.safetensors"))) > 1


@pytest.fixture
def copied_model(make_reference: Callable[[str], Any], tmp_path: Path) -> Path:
    return Path(shutil.copytree(make_reference("qwen2").directory, tmp_path / "copy"))


def _rewrite_tensor(directory: Path, name: str, tensor: torch.Tensor | None) -> None:
    path = directory / "model.safetensors"
    tensors = {key: value.clone() for key, value in load_file(path).items() if key != name}
    save_file(tensors if tensor is None else {**tensors, name: tensor}, path)


def test_a_missing_tensor_is_named(copied_model: Path, make_driver: Callable[..., CoreDriver]) -> None:
    _rewrite_tensor(copied_model, "model.layers.1.mlp.up_proj.weight", None)
    with pytest.raises(SettingsError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        make_driver(copied_model)


def test_a_tensor_of_the_wrong_shape_is_named(copied_model: Path, make_driver: Callable[..., CoreDriver]) -> None:
    _rewrite_tensor(copied_model, "model.norm.weight", torch.ones(3))
    with pytest.raises(SettingsError, match=r"model\.norm\.weight .* \(3,\).*\(48,\)"):
        make_driver(copied_model)


def test_a_tensor_without_a_place_is_named(copied_model: Path, make_driver: Callable[..., CoreDriver]) -> None:
    _rewrite_tensor(copied_model, "model.extra.weight", torch.ones(3))
    with pytest.raises(SettingsError, match=r"model\.extra\.weight"):
        make_driver(copied_model)


def test_a_directory_without_weights_is_refused(copied_model: Path, make_driver: Callable[..., CoreDriver]) -> None:
    (copied_model / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match=r"no \*\.safetensors"):
        make_driver(copied_model)


def test_a_broken_weight_file_is_refused(copied_model: Path, make_driver: Callable[..., CoreDriver]) -> None:
    (copied_model / "model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(SettingsError, match=r"cannot read .*model\.safetensors"):
        make_driver(copied_model)


def test_dummy_weights_need_only_a_config(tmp_path: Path, llama: Any, make_driver: Callable[..., CoreDriver]) -> None:
    shutil.copy(llama.directory / "config.json", tmp_path)
    driver = make_driver(tmp_path, load_format="dummy")
    driver.add(add_request("a", [1, 2, 3], max_tokens=5))
    assert len(driver.run()["a"]) == 5


def test_the_same_seed_gives_the_same_dummy_weights(
    tmp_path: Path, llama: Any, make_driver: Callable[..., CoreDriver]
) -> None:
    shutil.copy(llama.directory / "config.json", tmp_path)
    answers = []
    for seed in (3, 3, 4):
        driver = make_driver(tmp_path, load_format="dummy", seed=seed)
        driver.add(add_request("a", [1, 2, 3]))
        answers.append(driver.run()["a"])
    assert answers[0] == answers[1] != answers[2]


def test_positions_rotate_pairs_half_a_head_apart() -> None:
    rotary = RotaryEmbedding(
        RopeConfig(theta=100.0), head_dim=4, max_positions=8, device=torch.device("cpu"), dtype=torch.float32
    )
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    rotated = rotary.rotate(x, rotary.at(torch.tensor([3])))
    fast, slow = torch.tensor(3.0), torch.tensor(0.3)
    expected = [
        1.0 * fast.cos() - 3.0 * fast.sin(),
        2.0 * slow.cos() - 4.0 * slow.sin(),
        3.0 * fast.cos() + 1.0 * fast.sin(),
        4.0 * slow.cos() + 2.0 * slow.sin(),
    ]
    torch.testing.assert_close(rotated.flatten(), torch.stack(expected))


def test_the_tiny_model_equals_transformers(tiny_model_dir: Path, make_driver: Callable[..., CoreDriver]) -> None:
    import transformers

    model = transformers.LlamaForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    prompt = list(range(20, 60))
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    driver = make_driver(tiny_model_dir)
    driver.add(add_request("a", prompt, max_tokens=12))
    assert driver.run()["a"] == expected[0, len(prompt) :].tolist()
    assert json.loads((tiny_model_dir / "config.json").read_text())["tie_word_embeddings"] is True
