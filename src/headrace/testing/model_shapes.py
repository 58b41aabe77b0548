"""A model that exists by its shape only, for parts that need no weights: `dataclasses.replace` makes others of it."""

from headrace.engine.model_config import ModelConfig, RopeConfig, SamplingDefaults

SMALLEST_MODEL = ModelConfig(
    model="",
    tokenizer="",
    served_model_name="",
    max_model_len=64,
    vocab_size=8,
    eos_token_ids=(),
    sampling_defaults=SamplingDefaults(),
    architecture="LlamaForCausalLM",
    checkpoint_dtype="float32",
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=1e4),
    tie_word_embeddings=True,
    attention_bias=False,
    mlp_bias=False,
)
