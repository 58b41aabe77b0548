"""A complete random-weight Llama directory of a few hundred kilobytes, for tests that need a real engine.

The model babbles, but in a fixed way: greedy answers depend on the whole prompt and are the same on every machine up to
floating point. The tokenizer is byte-level BPE with a ChatML template. Needs torch and safetensors (extra `engine`).
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    import torch

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Their ids are 0, 1 and 2; the first and the last end a generation."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_VOCABULARY_TEXT = (
    "The headrace carries water from the river to the wheel; the wheel turns the stone, and the stone grinds "
    "the grain. "
    "A request carries a prompt from the client to the engine; the engine reads the tokens and answers with tokens. "
    "Where does the water go when the wheel has turned? It leaves by the tailrace and returns to the river. "
)
_MAX_VOCABULARY = 384
_HIDDEN = 64
_INTERMEDIATE = 128
_LAYERS = 2
_HEADS = 4
_KV_HEADS = 2
_HEAD_DIM = 16


def write_tiny_model(directory: Path, *, seed: int = 0, max_model_len: int = 512) -> Path:
    """Write config, weights, tokenizer and generation defaults into `directory` (made if absent); returns it.

    The same `seed` writes the same weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_tokenizer(directory)
    _write_json(directory / "config.json", _model_config(vocab_size=vocab_size, max_model_len=max_model_len))
    _write_json(directory / "generation_config.json", {"bos_token_id": 0, "eos_token_id": [2, 0], "temperature": 1.0})
    _write_weights(directory, vocab_size=vocab_size, seed=seed)
    return directory


def _write_tokenizer(directory: Path) -> int:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_MAX_VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_VOCABULARY_TEXT], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 1_000_000,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )
    return int(tokenizer.get_vocab_size())


def _model_config(*, vocab_size: int, max_model_len: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": max_model_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _write_weights(directory: Path, *, vocab_size: int, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> "torch.Tensor":
        return torch.randn(*shape, generator=generator) * scale

    tensors = {"model.embed_tokens.weight": normal(vocab_size, _HIDDEN, scale=1.0)}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}"
        shapes = {
            "self_attn.q_proj": (_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.k_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.v_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.o_proj": (_HIDDEN, _HEADS * _HEAD_DIM),
            "mlp.gate_proj": (_INTERMEDIATE, _HIDDEN),
            "mlp.up_proj": (_INTERMEDIATE, _HIDDEN),
            "mlp.down_proj": (_HIDDEN, _INTERMEDIATE),
        }
        for name, shape in shapes.items():
            tensors[f"{prefix}.{name}.weight"] = normal(*shape, scale=2.0 * shape[1] ** -0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = torch.ones(_HIDDEN)
    # Random signs on the last norm: with tied embeddings the most likely next token would otherwise be the same again.
    tensors["model.norm.weight"] = normal(_HIDDEN, scale=1.0).sign() * 0.5
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
