"""Write a Hugging Face directory with random weights in the shape of a known model, for tests and benchmarks.

Owns the shapes and how the weights are drawn. Does not own the tokenizer: it copies one, by default the demo model's,
and the ids above that tokenizer's size exist in the model only. What such a model writes means nothing; only its size
and speed do.

    python scripts/make_random_model.py --shape 135m out/random-135m
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Shape:
    """The sizes of one model."""

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    rope_theta: float
    positions: int
    norm_eps: float

    @property
    def head_dim(self) -> int:
        """The width of one head."""
        return self.hidden // self.heads

    @property
    def biased(self) -> bool:
        """Tell whether the query, key and value projections have a bias, as Qwen2's have."""
        return self.model_type == "qwen2"


SHAPES = {
    "tiny": Shape("llama", 32, 2, 4, 2, 64, 4096, 10000.0, 2048, 1e-5),
    # The sizes of SmolLM2-135M.
    "135m": Shape("llama", 576, 30, 9, 3, 1536, 49152, 100000.0, 8192, 1e-5),
    # The sizes of Qwen2.5-0.5B.
    "0.5b": Shape("qwen2", 896, 24, 14, 2, 4864, 151936, 1000000.0, 32768, 1e-6),
}


def _normal(generator: torch.Generator, spread: float, *size: int) -> Tensor:
    return torch.empty(*size).normal_(0.0, spread, generator=generator).to(torch.bfloat16)


def _layer(shape: Shape, generator: torch.Generator, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Draw one layer; a matrix keeps the size of what it multiplies, so that activations stay near one."""
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    ones = torch.ones(shape.hidden, dtype=torch.bfloat16)
    yield f"{prefix}.input_layernorm.weight", ones
    yield f"{prefix}.post_attention_layernorm.weight", ones.clone()
    for name, rows in (("q_proj", wide), ("k_proj", narrow), ("v_proj", narrow)):
        yield f"{prefix}.self_attn.{name}.weight", _normal(generator, shape.hidden**-0.5, rows, shape.hidden)
        if shape.biased:
            yield f"{prefix}.self_attn.{name}.bias", _normal(generator, 0.1, rows)
    yield f"{prefix}.self_attn.o_proj.weight", _normal(generator, wide**-0.5, shape.hidden, wide)
    for name, rows, columns in (
        ("gate_proj", shape.intermediate, shape.hidden),
        ("up_proj", shape.intermediate, shape.hidden),
        ("down_proj", shape.hidden, shape.intermediate),
    ):
        yield f"{prefix}.mlp.{name}.weight", _normal(generator, columns**-0.5, rows, columns)


def draw_weights(shape: Shape, seed: int) -> dict[str, Tensor]:
    """Draw all weights from one generator, so that a seed names them."""
    generator = torch.Generator().manual_seed(seed)
    # The embedding is also the output projection. With plain positive norms the last token would score itself highest
    # and greedy output would repeat it; random signs on the final norm undo that, and the larger embedding keeps the
    # token's own share of the hidden state from drowning in what the layers add.
    weights = {"model.embed_tokens.weight": _normal(generator, 1.0, shape.vocab, shape.hidden)}
    for number in range(shape.layers):
        weights.update(_layer(shape, generator, f"model.layers.{number}"))
        print(f"layer {number + 1}/{shape.layers}", flush=True)
    signs = torch.randint(0, 2, (shape.hidden,), generator=generator) * 2 - 1
    # The scale keeps the logits' spread near two, as a trained model has it.
    weights["model.norm.weight"] = (signs * 2.0 * shape.hidden**-0.5).to(torch.bfloat16)
    return weights


def _config(shape: Shape, end: int, pad: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["Qwen2ForCausalLM" if shape.model_type == "qwen2" else "LlamaForCausalLM"],
        "model_type": shape.model_type,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": end,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.positions,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": pad,
        "rms_norm_eps": shape.norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocab,
    }
    if shape.model_type == "llama":
        config |= {"attention_bias": False, "head_dim": shape.head_dim, "mlp_bias": False}
    else:
        config |= {"use_sliding_window": False}
    return config


def _special_ids(tokenizer: Path) -> tuple[int, int]:
    """Read the ids of the end-of-turn and the padding token from the tokenizer that is copied."""
    names = json.loads((tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))
    added = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    ids = {token["content"]: int(token["id"]) for token in added}
    return ids[names["eos_token"]], ids[names["pad_token"]]


def write_model(shape: Shape, out: Path, seed: int, tokenizer: Path) -> None:
    """Write the whole directory."""
    out.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, out / name)
    end, pad = _special_ids(tokenizer)
    generation = {"eos_token_id": [end, pad], "pad_token_id": pad}
    for name, content in (("config.json", _config(shape, end, pad)), ("generation_config.json", generation)):
        (out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(draw_weights(shape, seed), out / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Read the arguments and write the model."""
    parser = argparse.ArgumentParser(description="Write a model directory with random weights.")
    parser.add_argument("out", type=Path, help="the directory to write")
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, default=ROOT / "models" / "demo", help="where to copy one from")
    arguments = parser.parse_args()
    began = time.monotonic()
    write_model(SHAPES[arguments.shape], arguments.out, arguments.seed, arguments.tokenizer)
    size = (arguments.out / "model.safetensors").stat().st_size / 2**20
    print(f"wrote {arguments.out}: {size:.1f} MiB of weights in {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
