"""One engine behind pipes, in that engine's own environment: imports nothing but the standard library.

    python -P engine_child.py serve RUNNER MODEL OPTIONS      answers a JSON line for every JSON line it reads
    python -P engine_child.py convert RUNNER MODEL OUT        writes the model in the engine's own format

RUNNER is a file with `load(model, options)`, which returns an object with `generate(prompts, num_tokens, on_token)`,
`close()` and `has_prefix_cache`, and for an engine with a format of its own with `convert(model, out)`, whose OUT is
the MODEL that it then loads. `generate` is greedy, passes over ends of
sequence, calls `on_token()` with the first token or with every one, and returns the new ids of every prompt.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TextIO, TypeAlias

Ids: TypeAlias = list[list[int]]
Json: TypeAlias = dict[str, object]


class Engine(Protocol):
    """What a runner's `load` returns."""

    has_prefix_cache: bool

    def generate(self, prompts: Ids, num_tokens: int, on_token: Callable[[], None]) -> Ids: ...

    def close(self) -> None: ...


class _Timed:
    """Calls an engine and takes the times of its tokens."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def generate(self, prompts: Ids, num_tokens: int) -> Json:
        first_at: float | None = None

        def on_token() -> None:
            nonlocal first_at
            if first_at is None:
                first_at = time.perf_counter()

        begun_at = time.perf_counter()
        ids = self._engine.generate(prompts, num_tokens, on_token)
        ended_at = time.perf_counter()
        return {"ids": ids, "first_token_s": (first_at or ended_at) - begun_at, "elapsed_s": ended_at - begun_at}


def serve(runner: Path, model: Path, options: Json, *, answers: TextIO) -> None:
    """Until standard input ends. The first answer comes when the engine has made its first token."""
    engine: Engine = runpy.run_path(str(runner))["load"](model, options)
    timed = _Timed(engine)
    first = timed.generate([list(range(100, 108))], 1)
    _write(answers, first | {"has_prefix_cache": engine.has_prefix_cache})
    for line in sys.stdin:
        request = json.loads(line)
        _write(answers, timed.generate(request["prompts"], request["num_tokens"]))
    engine.close()


def _write(answers: TextIO, answer: Json) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _own_pipe() -> TextIO:
    """What was standard output; from now on libraries that print write to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def main() -> None:
    """Read the command line; `options["core"]` pins this process and all that it starts before the engine loads."""
    answers = _own_pipe()
    verb, runner, model, last = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    if verb == "convert":
        runpy.run_path(str(runner))["convert"](model, Path(last))
        return
    options = json.loads(last)
    with suppress(AttributeError):  # not on every system
        os.sched_setaffinity(0, {options["core"]})
    serve(runner, model, options, answers=answers)


if __name__ == "__main__":
    main()
