"""One request of ours in vLLM's words. Pure, but for the constructors that it is given."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from headrace.engine.lora_request import LoRARequest
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.structured_outputs import StructuredOutputsParams
from headrace.engine.vllm_backend.library import VllmLibrary
from headrace.engine.wire.messages import AddRequest
from headrace.errors import UnsupportedError

_SAME = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "skip_reading_prefix_cache",
)
"""Both have these, and mean the same by them. `n`, `stop` and the text belong to the front end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmCall:
    """What vLLM's `generate`, or its `encode` for a vector, is called with."""

    prompt: object
    params: object
    lora_request: object | None


def vllm_call(request: AddRequest, library: VllmLibrary) -> VllmCall:
    """Raises UnsupportedError for what vLLM cannot do for one request, and what vLLM raises of the rest."""
    return VllmCall(
        prompt=library.tokens_prompt(**_prompt(request)),
        params=_params(request, library),
        lora_request=None if request.lora is None else vllm_lora(request.lora, library),
    )


def vllm_lora(lora: LoRARequest, library: VllmLibrary) -> object:
    return library.lora_request(lora_name=lora.lora_name, lora_int_id=lora.lora_int_id, lora_path=lora.lora_path)


def sampling_arguments(request: AddRequest) -> dict[str, object]:
    """Keyword arguments of vLLM's SamplingParams but for the structure; what is at its default is left out.

    The ids that end the answer are those of the request: vLLM is not to add any of its own.
    """
    params = request.sampling_params
    defaults = _defaults()
    named = {name: getattr(params, name) for name in _SAME if getattr(params, name) != defaults[name]}
    named = {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}
    return {
        **named,
        "max_tokens": request.max_tokens,
        "stop_token_ids": list(request.stop_token_ids),
        "ignore_eos": True,
        "detokenize": False,
    }


def _prompt(request: AddRequest) -> dict[str, object]:
    prompt: dict[str, object] = {"prompt_token_ids": np.frombuffer(request.prompt, dtype=np.uint32).tolist()}
    if request.cache_salt is not None:
        prompt["cache_salt"] = request.cache_salt
    return prompt


def _params(request: AddRequest, library: VllmLibrary) -> object:
    if request.pooling_params is not None:
        return library.pooling_params(**_pooling_arguments(request))
    arguments = sampling_arguments(request)
    structure = request.sampling_params.structured_outputs
    if structure is not None:
        arguments["structured_outputs"] = library.structured_outputs(**_structure_arguments(structure))
    return library.sampling_params(**arguments, output_kind=library.delta)


def _pooling_arguments(request: AddRequest) -> dict[str, object]:
    params = request.pooling_params
    assert params is not None
    if params.pooling_type is not None:
        message = (
            f"pooling_type={params.pooling_type!r} is not supported by the backend 'vllm', which pools all requests as "
            f"the model says; leave it out"
        )
        raise UnsupportedError(message, param="pooling_type")
    return {"task": "embed", "dimensions": params.dimensions, "use_activation": params.normalize}


def _structure_arguments(structure: StructuredOutputsParams) -> dict[str, object]:
    given = {
        field.name: getattr(structure, field.name)
        for field in msgspec.structs.fields(structure)
        if getattr(structure, field.name) != field.default
    }
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def _defaults() -> Mapping[str, object]:
    return {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}
