"""Weights are views of mapped files, read by index or by name, and resident once."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace.engine.models.tensor_file import TensorFile
from headrace.engine.models.weights import SafetensorsWeights, TensorPart
from headrace.errors import SettingsError
from headrace.testing.core_driver import add_request


def open_weights(directory: Path, dtype: torch.dtype = torch.float32) -> SafetensorsWeights:
    return SafetensorsWeights(directory, device=torch.device("cpu"), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_tensors_are_read_as_they_were_written(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5).to(dtype), "b": torch.randn(7).to(dtype), "none": torch.empty(0, 4, dtype=dtype)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = TensorFile(tmp_path / "x.safetensors")
    assert set(file.names) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(file.tensor(name), tensor)


def test_tensors_of_the_wanted_type_are_not_copied(tmp_path: Path) -> None:
    save_file({"model.a": torch.randn(4, 4), "model.b": torch.randn(4, 4)}, tmp_path / "model.safetensors")
    weights = open_weights(tmp_path)
    a, b = (weights.take(f"model.{name}", 4, 4) for name in "ab")
    assert abs(a.data_ptr() - b.data_ptr()) == 64, "they are neighbours in the file"


def test_released_pages_come_back_when_they_are_used(tmp_path: Path) -> None:
    tensor = torch.arange(50_000, dtype=torch.float32)
    save_file({"model.a": tensor}, tmp_path / "model.safetensors")
    weights = open_weights(tmp_path)
    taken = weights.take("model.a", 50_000)
    weights.release_pages()
    assert torch.equal(taken, tensor)


def _resident_bytes(tensor: torch.Tensor) -> int:
    """Of the mapping that the tensor is a view of."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    is_inside = False
    for line in lines:
        head = line.split()[0]
        if "-" in head and ":" not in head:
            start, end = (int(number, 16) for number in head.split("-"))
            is_inside = start <= tensor.data_ptr() < end
        elif is_inside and head == "Rss:":
            return int(line.split()[1]) * 1024
    raise AssertionError("the tensor is in no mapping")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_weights_that_were_copied_are_not_resident_twice(tmp_path: Path) -> None:
    tensors = {f"model.{index}": torch.randn(1024, 1024) for index in range(20)}
    save_file(tensors, tmp_path / "model.safetensors")
    weights = open_weights(tmp_path)
    taken = [weights.take(f"model.{index}", 1024, 1024) for index in range(20)]
    copies = [tensor + 0 for tensor in taken[:10]]
    assert _resident_bytes(taken[0]) > 30 * 2**20
    weights.release_pages()
    assert _resident_bytes(taken[0]) == 0
    assert torch.equal(copies[3], tensors["model.3"])


def test_while_weights_are_taken_pages_are_given_back(tmp_path: Path) -> None:
    if not Path("/proc/self/smaps").exists():
        pytest.skip("needs Linux's /proc")
    num = 24
    save_file({f"model.{index}": torch.randn(1024, 1024) for index in range(num)}, tmp_path / "model.safetensors")
    weights = open_weights(tmp_path)
    most = 0
    for index in range(num):
        taken = weights.take(f"model.{index}", 1024, 1024)
        taken.sum()
        most = max(most, _resident_bytes(taken))
    assert most < 48 * 2**20


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (TensorPart(dim=0, span=range(1, 3)), [[4, 5, 6, 7], [8, 9, 10, 11]]),
        (TensorPart(dim=1, span=range(2, 3)), [[2], [6], [10]]),
    ],
)
def test_a_part_of_a_tensor_is_read(part: TensorPart, expected: list[list[int]], tmp_path: Path) -> None:
    save_file({"model.a": torch.arange(12.0).view(3, 4)}, tmp_path / "model.safetensors")
    taken = open_weights(tmp_path).take("model.a", 3, 4, part=part)
    assert taken.tolist() == expected
    assert taken.is_contiguous()


def test_files_without_the_models_prefix_are_read(tmp_path: Path) -> None:
    save_file({"norm.weight": torch.ones(4), "lm_head.weight": torch.ones(2, 4)}, tmp_path / "model.safetensors")
    weights = open_weights(tmp_path)
    assert weights.untaken() == ("lm_head.weight", "model.norm.weight")
    assert weights.take("model.norm.weight", 4).tolist() == [1.0] * 4


def test_an_embedding_models_directory_answers_as_the_whole_model(llama: Any, tmp_path: Path, make_driver: Any) -> None:
    shutil.copy(llama.directory / "config.json", tmp_path)
    tensors: dict[str, torch.Tensor] = {}
    for shard in llama.directory.glob("*.safetensors"):
        tensors |= {name.removeprefix("model."): tensor for name, tensor in load_file(shard).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    driver = make_driver(tmp_path)
    driver.add(add_request("a", [1, 2, 3]))
    assert driver.run()["a"] == llama.greedy([1, 2, 3])


def test_one_whole_file_is_preferred_to_others_beside_it(tmp_path: Path) -> None:
    save_file({"model.a": torch.ones(2)}, tmp_path / "model.safetensors")
    save_file({"layers.0.a": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    assert open_weights(tmp_path).untaken() == ("model.a",)


@pytest.mark.parametrize(
    "content", [b"", b"1234", b"\xff" * 64, struct.pack("<Q", 3) + b"[1]", struct.pack("<Q", 9) + b'{"a": {}}']
)
def test_what_is_no_safetensors_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(SettingsError, match=r"cannot read .*x\.safetensors"):
        TensorFile(tmp_path / "x.safetensors")


def _with_entry(directory: Path, entry: dict[str, Any]) -> TensorFile:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}).encode()
    (directory / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    return TensorFile(directory / "x.safetensors")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"data_offsets": [0, 16], "shape": [4]}, "outside of the file"),
        ({"data_offsets": [-8, 0]}, "outside of the file"),
        ({"data_offsets": [8, 0], "shape": [0]}, "outside of the file"),
        ({"shape": [3]}, "8 bytes"),
        ({"dtype": "F8_E4M3"}, "type F8_E4M3"),
    ],
)
def test_a_tensor_that_cannot_be_read_is_refused(entry: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        _with_entry(tmp_path, entry).tensor("a")


def test_a_well_formed_entry_is_read(tmp_path: Path) -> None:
    assert _with_entry(tmp_path, {}).tensor("a").tolist() == [0.0, 0.0]


def test_an_index_names_the_file_of_each_tensor(tmp_path: Path) -> None:
    save_file({"model.a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"model.b": torch.zeros(2)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"model.a": "one.safetensors", "model.b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = open_weights(tmp_path)
    assert (weights.take("model.b", 2).tolist(), weights.take("model.a", 2).tolist()) == ([0.0, 0.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("index", "message"),
    [("{}", "weight_map"), ("no JSON", "cannot use"), ('{"weight_map": {"model.a": "gone.safetensors"}}', "gone")],
)
def test_a_bad_index_is_refused(index: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(SettingsError, match=message):
        open_weights(tmp_path).take("model.a", 2)
