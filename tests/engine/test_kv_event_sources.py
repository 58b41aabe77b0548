"""Where KV events are said to be had."""

from headrace.engine.kv_events.config import KVEventsConfig
from headrace.engine.kv_events.sources import event_sources


def test_without_a_publisher_there_are_none() -> None:
    assert event_sources(None, num_ranks=2) == {}
    assert event_sources(KVEventsConfig(publisher="null"), num_ranks=1) == {}


def test_ports_that_were_asked_for_are_told_as_they_were() -> None:
    config = KVEventsConfig(endpoint="tcp://*:5557", replay_endpoint="tcp://*:6000")
    sources = event_sources(config, num_ranks=2, bound=["tcp://0.0.0.0:5557", "tcp://0.0.0.0:5558"])
    assert [source.endpoint for source in sources.values()] == ["tcp://*:5557", "tcp://*:5558"]
    assert [source.replay_endpoint for source in sources.values()] == ["tcp://*:6000", "tcp://*:6001"]
    assert [source.data_parallel_rank for source in sources.values()] == [0, 1]


def test_ports_that_the_system_chose_are_told_by_rank() -> None:
    config = KVEventsConfig(endpoint="tcp://127.0.0.1:0", replay_endpoint="tcp://*:0")
    sources = event_sources(
        config,
        num_ranks=2,
        bound=["tcp://127.0.0.1:40001", "tcp://127.0.0.1:40002"],
        bound_replays=["tcp://0.0.0.0:41001", "tcp://0.0.0.0:41002"],
    )
    assert [source.endpoint for source in sources.values()] == ["tcp://127.0.0.1:40001", "tcp://127.0.0.1:40002"]
    assert [source.replay_endpoint for source in sources.values()] == ["tcp://*:41001", "tcp://*:41002"]


def test_what_nobody_has_bound_yet_is_told_as_it_was_asked_for() -> None:
    config = KVEventsConfig(endpoint="tcp://*:0", replay_endpoint="ipc:///tmp/replay")
    (source,) = event_sources(config, num_ranks=1).values()
    assert (source.endpoint, source.replay_endpoint) == ("tcp://*:0", "ipc:///tmp/replay")
