"""Records a step's CUDA kernels as one graph, which the device then launches by itself.

Written without a CUDA device at hand: its only caller, `static_decode`, is tested on a CPU, this file is not.
"""

import torch
from torch import Tensor

from headrace.engine.runner.static_decode import Replay


class CudaGraphRecorder:
    """A `Record` whose graphs share one memory pool: they replay one after the other, never at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Replay) -> Replay:
        _warm_up(run)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


def _warm_up(run: Replay) -> None:
    """Libraries choose their algorithms and take their workspaces on the first runs, which no graph may hold."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # of torch
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.current_stream().wait_stream(stream)
