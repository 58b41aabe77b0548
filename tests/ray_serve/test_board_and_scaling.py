"""How engines make themselves known on Ray, and how many there should be."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.ray_serve.board import LIFETIME_S, EndpointBoard
from headrace.ray_serve.scaling import QUEUE_METRIC, scale_by_queue
from headrace.ray_serve.settings import RayServeSettings


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Config:
    target_ongoing_requests: float = 4.0


@dataclass
class Context:
    """Of Ray's, what the policy reads."""

    queues: dict[str, float] | None
    target_num_replicas: int = 2
    config: Config = field(default_factory=Config)

    @property
    def aggregated_metrics(self) -> dict[str, dict[str, float]]:
        return {} if self.queues is None else {QUEUE_METRIC: self.queues}


async def test_engines_that_announced_themselves_are_on_the_board_until_they_withdraw() -> None:
    board = EndpointBoard(Clock())
    await board.announce("http://b:1")
    await board.announce("http://a:1")

    assert await board.urls() == ["http://a:1", "http://b:1"]
    await board.withdraw("http://a:1")
    await board.withdraw("http://a:1")
    assert await board.urls() == ["http://b:1"]


async def test_an_engine_that_falls_silent_is_forgotten_and_one_that_renews_is_not() -> None:
    clock = Clock()
    board = EndpointBoard(clock)
    await board.announce("http://a:1")
    await board.announce("http://b:1")
    clock.now_s = LIFETIME_S - 1
    await board.announce("http://b:1")
    clock.now_s = LIFETIME_S + 1

    assert await board.urls() == ["http://b:1"]


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1000), min_size=1, max_size=8), st.floats(0.5, 100))
def test_there_are_engines_for_each_to_have_what_is_aimed_at(queues: dict[str, float], target: float) -> None:
    wanted, state = scale_by_queue(Context(queues, config=Config(target)))  # type: ignore[arg-type]

    assert wanted * target == pytest.approx(sum(queues.values()))
    assert state == {}


def test_there_are_as_many_engines_as_before_while_none_has_told() -> None:
    assert scale_by_queue(Context(None)) == (2, {})  # type: ignore[arg-type]
    assert scale_by_queue(Context({})) == (2, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_replicas": 0},
        {"min_replicas": 3, "max_replicas": 2},
        {"target_queue": 0.0},
        {"num_cpus": -1.0},
        {"drain_timeout_s": 0.0},
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError) as caught:
        RayServeSettings(**wrong)  # type: ignore[arg-type]

    assert caught.value.param in wrong
