import os
from pathlib import Path

import pytest

from headrace import cores


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        ("max 100000\n", 64),
        ("100000 100000\n", 1),
        ("150000 100000\n", 1),
        ("400000 100000\n", 4),
        ("20000 100000\n", 1),
        ("12800000 100000\n", 64),
        ("400000 0\n", 64),
        ("-1 100000\n", 64),
        ("", 64),
        ("garbage", 64),
    ],
)
def test_a_containers_limit_counts(
    cpu_max: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text(cpu_max)
    monkeypatch.setattr(cores, "_CPU_MAX", limit)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert cores.num_cores() == expected


def test_without_a_limit_file_what_may_run_this_process_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_CPU_MAX", tmp_path / "missing")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert cores.num_cores() == 2
