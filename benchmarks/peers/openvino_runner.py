"""OpenVINO GenAI's continuous batching, for `engine_child`; runs in that peer's environment.

Its defaults stay as they are, the KV cache in 8 bits among them.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Ids = list[list[int]]


def convert(model: Path, out: Path) -> None:
    """`optimum-cli export openvino`, which stands beside the interpreter."""
    command = str(Path(sys.executable).with_name("optimum-cli"))
    task = ["--task", "text-generation-with-past", "--weight-format", "fp16"]
    partial = out.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    subprocess.run([command, "export", "openvino", "--model", str(model), *task, str(partial)], check=True)
    partial.rename(out)


def load(model: Path, options: dict[str, Any]) -> "OpenvinoEngine":
    return OpenvinoEngine(model, options)


class OpenvinoEngine:
    has_prefix_cache = True

    def __init__(self, model: Path, options: dict[str, Any]) -> None:
        import openvino_genai  # type: ignore[import-not-found]  # in that environment only

        self._genai = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        scheduler.max_num_seqs = options["num_streams"]
        scheduler.max_num_batched_tokens = 2048
        scheduler.enable_prefix_caching = True
        threads = {"INFERENCE_NUM_THREADS": 1}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", threads)
        self._number = 0

    def generate(self, prompts: Ids, num_tokens: int, on_token: Callable[[], None]) -> Ids:
        import numpy as np
        import openvino  # type: ignore[import-not-found]  # in that environment only

        config = self._genai.GenerationConfig(max_new_tokens=num_tokens, ignore_eos=True, do_sample=False)
        handles = []
        for prompt in prompts:
            tensor = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._number, tensor, config))
            self._number += 1
        ids: Ids = [[] for _ in prompts]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for handle, own in zip(handles, ids, strict=True):
                if handle.can_read():
                    own += next(iter(handle.read().values())).generated_ids
                    on_token()
        return ids

    def close(self) -> None:
        """Nothing outlives the process."""
