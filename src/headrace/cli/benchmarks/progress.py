"""A bar on the console while something is measured."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Steps:
    """What is measured now, and how much of it is done."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def begin(self, what: str, *, num_steps: int) -> None:
        self._progress.update(self._task, description=what, total=num_steps, completed=0, refresh=True)

    def step(self) -> None:
        self._progress.update(self._task, advance=1, refresh=True)


@contextmanager
def progress(console: Console) -> Iterator[Steps]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False) as bar:  # its thread would disturb what is measured
        yield Steps(bar, bar.add_task("loading", total=1))
