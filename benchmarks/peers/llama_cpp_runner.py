"""llama.cpp through its Python binding's low-level calls, for `engine_child`; runs in that peer's environment.

One context for each number of streams, so that each has the KV cache that suits it best; greedy choice by numpy.
"""

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Ids = list[list[int]]

_NUM_BATCH_TOKENS = 2048


def convert(model: Path, out: Path) -> None:
    """The converter of llama.cpp's own sources, which the installer leaves beside the virtual environment."""
    source = next(Path(sys.prefix).parent.glob("llama_cpp_python-*/vendor/llama.cpp"))
    sys.path[:0] = [str(source / "gguf-py"), str(source)]
    import conversion.base as base  # type: ignore[import-not-found]  # in those sources only

    # It knows tokenizers by a hash of what they do and refuses others; here only ids go in and come out.
    base.TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
    partial = out.with_suffix(".partial")
    sys.argv = ["convert", str(model), "--outtype", "bf16", "--outfile", str(partial)]
    runpy.run_path(str(source / "convert_hf_to_gguf.py"), run_name="__main__")
    partial.rename(out)


def load(model: Path, options: dict[str, Any]) -> "LlamaCppEngine":
    return LlamaCppEngine(model, options)


class LlamaCppEngine:
    has_prefix_cache = True

    def __init__(self, model: Path, options: dict[str, Any]) -> None:
        import llama_cpp  # type: ignore[import-not-found]  # in that environment only

        self._llama = llama_cpp
        self._max_model_len = options["max_model_len"]
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(model).encode(), llama_cpp.llama_model_default_params())
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(_NUM_BATCH_TOKENS, 0, 1)
        self._contexts: dict[tuple[int, int], Any] = {}
        self._kept: list[int] = []
        """What the context of one stream still holds: its prefix cache."""

    def generate(self, prompts: Ids, num_tokens: int, on_token: Callable[[], None]) -> Ids:
        context = self._context(len(prompts), len(prompts[0]) + num_tokens)
        num_kept = self._forget(context, prompts)
        last = self._prefill(context, prompts, num_kept)
        on_token()
        ids: Ids = [[token] for token in last]
        for step in range(num_tokens - 1):
            position = len(prompts[0]) + step
            last = self._decode(context, [(token, position, stream, True) for stream, token in enumerate(last)])
            for own, token in zip(ids, last, strict=True):
                own.append(token)
        self._kept = prompts[0] + ids[0][:-1] if len(prompts) == 1 else self._kept
        return ids

    def close(self) -> None:
        """Nothing outlives the process."""

    def _context(self, num_streams: int, stream_len: int) -> Any:
        stream_len = self._max_model_len if num_streams == 1 else stream_len
        key = (num_streams, stream_len)
        if key not in self._contexts:
            params = self._llama.llama_context_default_params()
            params.n_ctx = num_streams * (-(-stream_len // 256) * 256)
            params.n_seq_max = num_streams
            params.n_batch = _NUM_BATCH_TOKENS
            params.n_threads = params.n_threads_batch = 1
            params.kv_unified = False
            self._contexts[key] = self._llama.llama_init_from_model(self._model, params)
        return self._contexts[key]

    def _forget(self, context: Any, prompts: Ids) -> int:
        """Drop what the new prompts do not begin with; how many tokens of a single prompt are still there."""
        memory = self._llama.llama_get_memory(context)
        if len(prompts) > 1:
            self._llama.llama_memory_clear(memory, False)
            return 0
        num_kept = 0
        for ours, wanted in zip(self._kept, prompts[0][:-1], strict=False):
            if ours != wanted:
                break
            num_kept += 1
        self._llama.llama_memory_seq_rm(memory, 0, num_kept, -1)
        return num_kept

    def _prefill(self, context: Any, prompts: Ids, num_kept: int) -> list[int]:
        """Whole prompts in batches of at most the batch's size; the first token of each."""
        entries = [
            (token, position, stream, position == len(prompt) - 1)
            for stream, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
            if position >= num_kept
        ]
        first: list[int] = []
        for begin in range(0, len(entries), _NUM_BATCH_TOKENS):
            first += self._decode(context, entries[begin : begin + _NUM_BATCH_TOKENS])
        return first

    def _decode(self, context: Any, entries: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Compute (token, position, stream, is_wanted) entries; the next token after each one that is wanted."""
        import numpy as np

        batch = self._batch
        batch.n_tokens = len(entries)
        for place, (token, position, stream, is_wanted) in enumerate(entries):
            batch.token[place] = token
            batch.pos[place] = position
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = stream
            batch.logits[place] = is_wanted
        if status := self._llama.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode returned {status}")
        chosen = []
        for place, (_, _, _, is_wanted) in enumerate(entries):
            if is_wanted:
                logits = self._llama.llama_get_logits_ith(context, place)
                chosen.append(int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax()))
        return chosen
