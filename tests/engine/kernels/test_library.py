"""The kernels are found where they were built, absent where not, and leave no thread behind."""

import gc
from pathlib import Path

import pytest
import torch

from headrace.engine.kernels import library
from headrace.engine.kernels.library import check, open_kernels
from headrace.engine.kernels.memory import Arena, map_memory
from headrace.engine.kernels.structures import Isa


def test_without_a_library_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_library", lambda: None)
    assert open_kernels(num_threads=1) is None


def test_a_file_that_is_no_library_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(library, "_path", lambda: broken)
    assert library._library.__wrapped__() is None
    assert "cannot be loaded" in caplog.text


def test_an_instruction_set_that_is_not_there_is_not_opened() -> None:
    assert open_kernels(num_threads=1, isa=Isa.NONE) is None


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux shows them")
def test_threads_end_with_their_kernels() -> None:
    def num_threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = num_threads()
    kernels = open_kernels(num_threads=4)
    if kernels is None:
        pytest.skip("no kernels here")
    assert num_threads() == before + 3
    del kernels
    gc.collect()
    assert num_threads() == before


def test_a_failed_call_is_a_memory_error() -> None:
    check(0)
    with pytest.raises(MemoryError, match="no memory"):
        check(-1)


def test_an_arena_hands_out_zeros_that_do_not_overlap() -> None:
    arena = Arena(chunk_bytes=1000)
    pieces = [arena.take(size) for size in (1, 100, 64, 900, 5000, 3)]
    for number, piece in enumerate(pieces, start=1):
        assert not piece.any()
        assert piece.data_ptr() % 64 == 0
        piece.fill_(number)
    assert [int(piece.unique()) for piece in pieces] == [1, 2, 3, 4, 5, 6]


def test_memory_stays_while_a_tensor_looks_at_it() -> None:
    view = map_memory(1 << 20)[100:200].view(torch.int32)
    gc.collect()
    view.fill_(7)
    assert int(view.sum()) == 7 * 25
