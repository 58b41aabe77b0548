"""Which checkpoints can be served: the architecture's name in config.json, and the module that builds it.

A new family is one module with a `build_model` function, like `headrace.engine.models.llama`, and one line here.
No torch.
"""

from collections.abc import Mapping
from types import MappingProxyType

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "LlamaForCausalLM": "headrace.engine.models.llama",
        "MistralForCausalLM": "headrace.engine.models.llama",
        "Qwen2ForCausalLM": "headrace.engine.models.qwen2",
        "Qwen3ForCausalLM": "headrace.engine.models.qwen3",
        "LlamaModel": "headrace.engine.models.llama",
        "MistralModel": "headrace.engine.models.llama",
        "Qwen2Model": "headrace.engine.models.qwen2",
        "Qwen3Model": "headrace.engine.models.qwen3",
    }
)
"""Those that end in Model have no language model's head: they embed, and generate nothing."""
