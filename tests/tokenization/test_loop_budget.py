"""What may be encoded in the event loop in one of its rounds."""

from headrace.tokenization.loop_budget import LoopBudget


def test_what_fits_is_allowed_until_the_round_is_spent() -> None:
    budget = LoopBudget(budget_s=0.001)
    assert budget.allows(1000)
    budget.spend(1000, took_s=0.0009)
    assert not budget.allows(4000)
    budget.renew()
    assert budget.allows(1000)


def test_estimates_follow_what_calls_took_within_bounds() -> None:
    budget = LoopBudget(budget_s=0.001)
    assert budget.allows(20_000)
    for _ in range(100):
        budget.spend(1000, took_s=0.001)
        budget.renew()
    assert not budget.allows(2000)
    for _ in range(200):
        budget.spend(1000, took_s=10e-6)
        budget.renew()
    assert budget.allows(20_000)
    budget.spend(1, took_s=5.0)
    budget.renew()
    assert budget.allows(5000), "one stall of the machine is not the encoder's speed"


def test_one_call_that_was_held_up_leaves_room_for_the_next() -> None:
    budget = LoopBudget(budget_s=0.001)
    budget.spend(12_000, took_s=0.3)
    budget.renew()
    assert budget.allows(12_000), "nothing else would teach it otherwise"


def test_what_is_reserved_is_kept_until_it_is_released() -> None:
    budget = LoopBudget(budget_s=0.001)
    assert budget.reserve(0.0009)
    assert not budget.allows(8000)
    budget.release(0.0009)
    assert budget.allows(8000)


def test_a_budget_of_nothing_allows_nothing() -> None:
    assert not LoopBudget(budget_s=0).allows(0)
