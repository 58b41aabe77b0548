"""All requests of a run together, under the names that vLLM's result files use. Pure but for the table."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.bench_serve.results import RequestResult
from headrace.cli.bench_serve.settings import LoadSettings
from headrace.cli.benchmarks.machine import Machine

_LATE_MS = 50.0
_MAX_ERRORS = 5
_TITLES = {
    "ttft": "time to first token",
    "tpot": "time per output token after it",
    "itl": "between two chunks",
    "e2el": "whole request",
}


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over all requests that ended well; milliseconds."""

    mean_ms: float
    std_ms: float
    percentiles_ms: dict[str, float]


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `headrace bench serve --json` prints."""

    benchmark: str = "serve"
    backend: str
    base_url: str
    model_id: str
    dataset_name: str
    request_rate: float | None
    """None: all at once, or at a trace's own times."""
    burstiness: float
    max_concurrency: int | None
    seed: int
    machine: Machine
    num_prompts: int
    completed: int
    failed: int
    errors: dict[str, int]
    """The most frequent ones."""
    duration_s: float
    total_input_tokens: int
    total_cached_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    """Requests per second that kept every limit; None without limits."""
    output_throughput: float
    total_token_throughput: float
    max_concurrent_requests: int
    p99_late_ms: float
    """How late the generator itself sent: much of this, and it measured itself."""
    requests_by_endpoint: dict[str, int]
    times: dict[str, Times]


def make_report(
    results: Sequence[RequestResult], settings: LoadSettings, *, model: str, duration_s: float, machine: Machine
) -> LoadReport:
    """Sum up a run of at least one request."""
    good = [one for one in results if one.error is None]
    num_input = sum(one.num_prompt_tokens for one in good)
    num_output = sum(one.num_output_tokens for one in good)
    errors = Counter(one.error for one in results if one.error is not None)
    limits = settings.limits_ms
    return LoadReport(
        backend=settings.backend,
        base_url=settings.base_url,
        model_id=model,
        dataset_name=settings.dataset_name,
        request_rate=settings.request_rate if settings.request_rate != float("inf") else None,
        burstiness=settings.burstiness,
        max_concurrency=settings.max_concurrency,
        seed=settings.seed,
        machine=machine,
        num_prompts=len(results),
        completed=len(good),
        failed=len(results) - len(good),
        errors=dict(errors.most_common(_MAX_ERRORS)),
        duration_s=duration_s,
        total_input_tokens=num_input,
        total_cached_tokens=sum(one.num_cached_tokens for one in good),
        total_output_tokens=num_output,
        request_throughput=len(good) / duration_s,
        request_goodput=sum(one.keeps(limits) for one in results) / duration_s if limits else None,
        output_throughput=num_output / duration_s,
        total_token_throughput=(num_input + num_output) / duration_s,
        max_concurrent_requests=most_at_once(results),
        p99_late_ms=float(np.percentile([one.late_s for one in results], 99)) * 1000,
        requests_by_endpoint=dict(sorted(Counter(one.endpoint for one in good if one.endpoint).items())),
        times=_times(good, settings),
    )


def _times(good: Sequence[RequestResult], settings: LoadSettings) -> dict[str, Times]:
    values: dict[str, Iterable[float | None]] = {
        "ttft": (one.ttft_s for one in good),
        "tpot": (one.tpot_s for one in good),
        "itl": (itl for one in good for itl in one.itls_s),
        "e2el": (one.e2el_s for one in good),
    }
    summed = {}
    for name in settings.shown_metrics:
        if known := [value * 1000 for value in values[name] if value is not None]:
            summed[name] = Times(
                mean_ms=statistics.fmean(known),
                std_ms=statistics.pstdev(known),
                percentiles_ms={f"p{one:g}": float(np.percentile(known, one)) for one in settings.shown_percentiles},
            )
    return summed


def most_at_once(results: Iterable[RequestResult]) -> int:
    """The most requests that were under way at a time."""
    changes = sorted(change for one in results for change in ((one.sent_s, 1), (one.ended_s, -1)))
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def show(report: LoadReport, console: Console) -> None:
    """The report as tables for people. Names and errors are others' words, so nothing in them is markup."""
    facts = Table(escape(f"{report.model_id} at {report.base_url}"), "", box=None)
    facts.columns[1].justify = "right"
    for name, value in _facts(report):
        facts.add_row(escape(name), value)
    console.print(facts)
    percentiles = [name for times in report.times.values() for name in times.percentiles_ms]
    table = Table("ms", "mean", *dict.fromkeys(percentiles), "deviation")
    for name, times in report.times.items():
        values = (times.mean_ms, *times.percentiles_ms.values(), times.std_ms)
        table.add_row(f"{name.upper()}  {_TITLES[name]}", *(f"{value:,.2f}" for value in values))
    console.print(table)
    for error, count in report.errors.items():
        console.print(f"[red]{count} x[/red] {escape(error)}", highlight=False)
    if report.p99_late_ms > _LATE_MS:
        console.print(f"The generator was late itself (p99 {report.p99_late_ms:.0f} ms): a lower rate measures better.")


def _facts(report: LoadReport) -> list[tuple[str, str]]:
    share = report.total_cached_tokens / report.total_input_tokens if report.total_input_tokens else 0.0
    facts = [
        ("requests that ended well", f"{report.completed:,} of {report.num_prompts:,}"),
        ("duration, s", f"{report.duration_s:,.2f}"),
        ("requests/s", f"{report.request_throughput:,.2f}"),
        ("input tokens", f"{report.total_input_tokens:,}"),
        ("of these from the prefix cache", f"{share:.1%}"),
        ("output tokens", f"{report.total_output_tokens:,}"),
        ("output tokens/s", f"{report.output_throughput:,.1f}"),
        ("all tokens/s", f"{report.total_token_throughput:,.1f}"),
        ("most requests at a time", f"{report.max_concurrent_requests:,}"),
    ]
    if report.request_goodput is not None:
        facts.append(("goodput, requests/s", f"{report.request_goodput:,.2f}"))
    return facts + [(f"requests at {name}", f"{count:,}") for name, count in report.requests_by_endpoint.items()]
