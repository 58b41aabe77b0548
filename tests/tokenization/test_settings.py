import pytest

from headrace.errors import SettingsError
from headrace.tokenization import TokenizationSettings


@pytest.mark.parametrize(
    "name",
    ["num_threads", "num_bulk_threads", "max_queued_jobs", "max_queued_bytes", "batch_max_bytes", "bulk_threshold"],
)
def test_zero_is_refused_where_nothing_could_run(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is 0; it must be 1 or more") as refusal:
        TokenizationSettings(**{name: 0})
    assert refusal.value.param == name


@pytest.mark.parametrize("name", ["cache_max_bytes", "cache_max_entries", "cache_max_text"])
def test_zero_switches_the_cache_off_and_less_is_refused(name: str) -> None:
    assert not TokenizationSettings(**{name: 0}).is_cache_on
    with pytest.raises(SettingsError):
        TokenizationSettings(**{name: -1})


@pytest.mark.parametrize("name", ["resume_max_text", "cache_max_bytes", "cache_max_entries"])
def test_zero_switches_resuming_off(name: str) -> None:
    assert TokenizationSettings().is_resuming
    assert not TokenizationSettings(**{name: 0}).is_resuming
    assert not TokenizationSettings(uses_cuts=False).is_resuming


@pytest.mark.parametrize(
    ("name", "value"),
    [("verify_share", 1.5), ("verify_share", -0.1), ("encoder", "other"), ("loop_budget_s", -1), ("num_processes", -1)],
)
def test_values_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=name) as refusal:
        TokenizationSettings(**{name: value})  # type: ignore[arg-type]
    assert refusal.value.param == name


def test_a_close_timeout_must_leave_time() -> None:
    with pytest.raises(SettingsError, match="close_timeout_s"):
        TokenizationSettings(close_timeout_s=0)
