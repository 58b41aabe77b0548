"""PEFT directories: what is read, and what is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace.engine.lora.adapter import Adapter, LayerSize, read_adapter
from headrace.engine.lora.adapter_config import read_adapter_config
from headrace.errors import InvalidRequestError, UnsupportedError

Q = "base_model.model.model.layers.0.self_attn.q_proj"
LAYERS = {
    "model.layers.0.self_attn.q_proj": LayerSize(input_size=6, output_size=4),
    "model.layers.1.mlp.down_proj": LayerSize(input_size=8, output_size=6),
}


def tensors_of(prefix: str, *, rank: int = 2, num_inputs: int = 6, num_outputs: int = 4) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.lora_A.weight": torch.arange(rank * num_inputs, dtype=torch.float32).view(rank, num_inputs),
        f"{prefix}.lora_B.weight": torch.ones(num_outputs, rank),
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """An adapter of one layer; config fields by keyword, None removes one."""

    def write(*, tensors: dict[str, torch.Tensor] | None = None, **fields: Any) -> Path:
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none", **fields}
        kept = {name: value for name, value in config.items() if value is not None}
        (tmp_path / "adapter_config.json").write_text(json.dumps(kept))
        save_file(tensors_of(Q) if tensors is None else tensors, tmp_path / "adapter_model.safetensors")
        return tmp_path

    return write


def read(directory: Path, *, max_rank: int = 16) -> Adapter:
    return read_adapter(directory, layers=LAYERS, max_rank=max_rank, dtype=torch.float32)


def test_the_scaling_is_alpha_over_rank(write: Callable[..., Path]) -> None:
    low_rank = read(write())["model.layers.0.self_attn.q_proj"]
    assert low_rank.a.shape == (2, 6)
    torch.testing.assert_close(low_rank.b, torch.full((4, 2), 4.0))


def test_rank_stabilized_scaling_is_alpha_over_the_root_of_the_rank(write: Callable[..., Path]) -> None:
    low_rank = read(write(use_rslora=True))["model.layers.0.self_attn.q_proj"]
    torch.testing.assert_close(low_rank.b, torch.full((4, 2), 8 / 2**0.5))


def test_patterns_give_layers_their_own_rank_and_alpha(write: Callable[..., Path]) -> None:
    tensors = tensors_of(Q, rank=4) | tensors_of(
        "base_model.model.model.layers.1.mlp.down_proj", num_inputs=8, num_outputs=6
    )
    directory = write(
        tensors=tensors,
        target_modules=["q_proj", "down_proj"],
        rank_pattern={"q_proj": 4},
        alpha_pattern={r"1\.mlp\.\w+": 6},
    )
    adapter = read(directory)
    torch.testing.assert_close(adapter["model.layers.0.self_attn.q_proj"].b, torch.full((4, 4), 2.0))
    torch.testing.assert_close(adapter["model.layers.1.mlp.down_proj"].b, torch.full((6, 2), 3.0))


@pytest.mark.parametrize(
    "targets", ["all-linear", r"model\.layers\.\d\.self_attn\.(q|k)_proj", ["layers.0.self_attn.q_proj"]]
)
def test_targets_may_be_names_or_an_expression(targets: Any, write: Callable[..., Path]) -> None:
    assert set(read(write(target_modules=targets))) == {"model.layers.0.self_attn.q_proj"}


def test_an_adapter_trained_without_the_head_is_read(write: Callable[..., Path]) -> None:
    directory = write(tensors=tensors_of("base_model.model.layers.0.self_attn.q_proj"))
    assert set(read(directory)) == {"model.layers.0.self_attn.q_proj"}


def test_fields_that_only_matter_in_training_are_passed_over(write: Callable[..., Path]) -> None:
    assert read(
        write(lora_dropout=0.1, inference_mode=True, velora_config={"rank": 1}, use_dora=False, lora_bias=False)
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"bias": "all"}, "bias='all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"use_dora": True}, "use_dora"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"target_modules": ["q_proj", "lm_head"]}, "targets lm_head"),
        ({"target_modules": ["model.embed_tokens"]}, r"targets model\.embed_tokens"),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_by_name(fields: dict[str, Any], message: str, write: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read(write(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"r": 17, "rank_pattern": {}}, r"rank 17; max_lora_rank is 16"),
        ({"rank_pattern": {"q_proj": 32}}, r"rank 32; max_lora_rank is 16"),
        ({"r": 0}, "below 1"),
        ({"r": None}, "`r`"),
        ({"target_modules": []}, "no target_modules"),
        ({"target_modules": "(q_proj"}, "no regular expression"),
        ({"target_modules": ["v_proj"]}, r"changes model\.layers\.0\.self_attn\.q_proj"),
        ({"exclude_modules": ["q_proj"]}, r"changes model\.layers\.0\.self_attn\.q_proj"),
        ({"r": 3}, r"shapes \(\(2, 6\), \(4, 2\)\).*\(\(3, 6\), \(4, 3\)\)"),
        ({"tensors": {}}, "holds no tensors"),
        ({"tensors": {f"{Q}.lora_A.weight": torch.ones(2, 6)}}, r"no tensor .*q_proj\.lora_B\.weight"),
        ({"tensors": {f"{Q}.lora_magnitude_vector": torch.ones(2)}}, "lora_magnitude_vector, which is not built"),
        ({"tensors": tensors_of("base_model.model.model.layers.7.self_attn.q_proj")}, r"changes model\.layers\.7"),
        ({"tensors": tensors_of(Q, num_inputs=7)}, r"\(2, 7\)"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_adapter_of_no_use_is_refused(fields: dict[str, Any], message: str, write: Callable[..., Path]) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read(write(**fields))


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"no LoRA adapter at .*No such file"):
        read(tmp_path / "nowhere")


def test_missing_and_broken_tensor_files_are_refused(write: Callable[..., Path]) -> None:
    directory = write()
    (directory / "adapter_model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(InvalidRequestError, match="cannot read"):
        read(directory)
    (directory / "adapter_model.safetensors").unlink()
    with pytest.raises(InvalidRequestError, match=r"no adapter_model\.safetensors"):
        read(directory)


def test_a_loaded_adapter_does_not_change_with_its_file(write: Callable[..., Path]) -> None:
    directory = write()
    a = read(directory)["model.layers.0.self_attn.q_proj"].a
    before = a.clone()
    path = directory / "adapter_model.safetensors"
    with path.open("r+b") as file:
        size = path.stat().st_size
        file.seek(size - 64)
        file.write(b"\xff" * 64)
    torch.testing.assert_close(a, before)


def test_the_config_alone_can_be_read(write: Callable[..., Path]) -> None:
    config = read_adapter_config(write(use_rslora=True), max_rank=2)
    layer = "model.layers.3.self_attn.q_proj"
    assert (config.max_rank, config.parts([layer])[layer].scaling) == (2, 8 / 2**0.5)


def test_the_random_adapter_script_writes_what_is_read(adapted: Any) -> None:
    assert len(load_file(adapted.paths["attention"] / "adapter_model.safetensors")) == 2 * 2 * 2


@pytest.mark.parametrize("path", ["/nowhere\0", "~nobody-by-this-name/adapter", "x" * 100_000, "/dev/null"])
def test_a_path_that_leads_nowhere_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        read(Path(path))
    assert refusal.value.param == "lora_path"


@pytest.mark.parametrize(
    "config",
    [
        b"\xff",
        b'{"r": 2, "lora_alpha": 8, "target_modules": ["\xff"]}',
        b'{"r": 2, "lora_alpha": 8, "target_modules": ["q_proj"], "lora_bias": %s}' % (b"[" * 50_000 + b"]" * 50_000),
        b'{"r": 2, "lora_alpha": 8, "target_modules": ["q_proj"], "rank_pattern": {"(": 2}}',
        b'{"r": 2, "lora_alpha": 8, "target_modules": ["q_proj"], "alpha_pattern": {"*": 2}}',
        b'{"r": 2, "lora_alpha": 8, "target_modules": ["q_proj"], "exclude_modules": "("}',
        b'{"r": 2, "lora_alpha": 1e400, "target_modules": ["q_proj"]}',
    ],
)
def test_a_config_of_any_wrongness_is_refused(write: Callable[..., Path], config: bytes) -> None:
    directory = write()
    (directory / "adapter_config.json").write_bytes(config)
    with pytest.raises(InvalidRequestError) as refusal:
        read(directory)
    assert refusal.value.param == "lora_path"


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 100, b"\x02" + b"\0" * 7 + b"{}"])
def test_tensors_of_any_wrongness_are_refused(write: Callable[..., Path], content: bytes) -> None:
    directory = write()
    (directory / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(InvalidRequestError) as refusal:
        read(directory)
    assert refusal.value.param == "lora_path"


@pytest.mark.parametrize(
    "fields",
    [
        {"rank_pattern": {"([a-z0-9_.]|[a-z0-9_.])+!": 2}},
        {"alpha_pattern": {"(.*)*(.*)*(.*)*(.*)*(.*)*!": 2}},
        {"target_modules": "(.*)*(.*)*(.*)*(.*)*(.*)*(.*)*(.*)*!"},
        {"exclude_modules": "([a-z0-9_.]|[a-z0-9_.])*!"},
    ],
)
def test_an_expression_that_takes_for_ever_is_refused(
    write: Callable[..., Path], fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.lora.name_patterns._TIMEOUT_S", 0.5)
    with pytest.raises(InvalidRequestError, match=r"take more than 0\.5 s to match"):
        read(write(**fields))


def test_expressions_without_end_are_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(InvalidRequestError, match="more than 65536 characters"):
        read(write(target_modules="(q_proj)|" * 10_000))
