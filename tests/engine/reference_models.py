"""Tiny random models of each family as transformers saves them, and transformers' own greedy answers."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHAPE = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # wide enough that the best token is clear and depends on the context
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1, "head_dim": 8}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-all-kv-heads": ("Llama", {"num_key_value_heads": 6, "attention_bias": True}),
    "llama-default-head-dim": ("Llama", {"num_attention_heads": 4, "head_dim": None}),
    "llama-yarn-rope": ("Llama", {"rope_parameters": YARN_ROPE}),
    "llama-yarn-mscale": (
        "Llama",
        {"rope_parameters": {**YARN_ROPE, "mscale": 1.4, "mscale_all_dim": 0.7, "beta_fast": 8.0, "beta_slow": 2.0}},
    ),
    "llama-yarn-attention-factor": ("Llama", {"rope_parameters": {**YARN_ROPE, "attention_factor": 1.3}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 24}),
    "mistral-tied": ("Mistral", {"sliding_window": None, "tie_word_embeddings": True, "head_dim": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen2-yarn-rope": ("Qwen2", {"rope_parameters": YARN_ROPE}),
    "qwen3": ("Qwen3", {}),
    "qwen3-biased-tied": ("Qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3-window": ("Qwen3", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
}


class ReferenceModel:
    """A model directory and transformers' answers for it, in float32."""

    def __init__(self, directory: Path, model: Any) -> None:
        self.directory = directory
        self.model = model
        self._answers: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def greedy(self, prompt: Sequence[int], *, num_tokens: int = 16) -> list[int]:
        key = (tuple(prompt), num_tokens)
        if key not in self._answers:
            import torch

            output = self.model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=None,
            )
            self._answers[key] = output[0, len(prompt) :].tolist()
        return self._answers[key]

    def hidden_states(self, prompt: Sequence[int]) -> Any:
        """The normalized hidden states [tokens, hidden] of the prompt."""
        import torch

        with torch.inference_mode():
            return self.model.model(torch.tensor([list(prompt)])).last_hidden_state[0]


def make_reference_model(family: str, directory: Path) -> ReferenceModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers' own imports
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        name, changes = FAMILIES[family]
        torch.manual_seed(7)
        config = getattr(transformers, f"{name}Config")(**{**SHAPE, **changes})
        model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
        _randomize_vectors(model)
        model.generation_config.pad_token_id = 0
        model.save_pretrained(directory, max_shard_size="40KB" if family == "llama" else "5GB")
    return ReferenceModel(directory, model)


def _randomize_vectors(model: Any) -> None:
    """Biases start at 0 and norms at 1; random ones show whether they are applied."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)


def merge_lora(base: ReferenceModel, adapter: Path) -> ReferenceModel:
    """The model with an adapter's products added to its weights: W + scaling * B A."""
    import torch
    import transformers
    from safetensors.torch import load_file

    config = json.loads((adapter / "adapter_config.json").read_text())
    scaling = config["lora_alpha"] / (config["r"] ** 0.5 if config["use_rslora"] else config["r"])
    tensors = load_file(adapter / "adapter_model.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(base.directory, dtype=torch.float32)
    weights = model.state_dict()
    for key, a in tensors.items():
        if key.endswith(".lora_A.weight"):
            layer = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            b = tensors[key.replace("lora_A", "lora_B")]
            weights[f"{layer}.weight"] += scaling * (b @ a)
    return ReferenceModel(base.directory, model.eval())
