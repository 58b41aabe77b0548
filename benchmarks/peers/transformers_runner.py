"""Hugging Face's transformers, for `engine_child`: `generate` over a batch. Its ids in float32 are the reference."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Ids = list[list[int]]


def load(model: Path, options: dict[str, Any]) -> "TransformersEngine":
    return TransformersEngine(model, options)


class TransformersEngine:
    has_prefix_cache = False

    def __init__(self, model: Path, options: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        dtype = getattr(torch, options["dtype"])
        self._model: Any = AutoModelForCausalLM.from_pretrained(str(model), dtype=dtype)
        self._model.generation_config.eos_token_id = None  # goes on after an end of sequence

    def generate(self, prompts: Ids, num_tokens: int, on_token: Callable[[], None]) -> Ids:
        """The prompts of one call have one length, so nothing is padded."""
        import torch
        from transformers import StoppingCriteria

        class Notice(StoppingCriteria):
            """Called after each token; never stops."""

            def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
                on_token()
                return torch.zeros(len(input_ids), dtype=torch.bool)

        inputs = torch.tensor(prompts)
        with torch.inference_mode():
            outputs = self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=[Notice()],
            )
        ids: Ids = outputs[:, inputs.shape[1] :].tolist()
        return ids

    def close(self) -> None:
        """Nothing outlives the process."""
