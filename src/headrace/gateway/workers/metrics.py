"""Joins the metrics of all workers into one exposition, each series with a label `worker`. Pure.

Why a label and no sums: a gauge such as `endpoint_healthy` has no meaning when added up, and a counter of sums would go
back whenever one worker is started anew, which Prometheus takes for a reset of the whole. `sum without (worker)` adds
up what should be.
"""

from collections.abc import Mapping

_HELP = b"# HELP "


def join_metrics(expositions: Mapping[int, bytes]) -> bytes:
    """The expositions by worker, in the text format of prometheus_client."""
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for number, exposition in expositions.items():
        label = b'worker="%d"' % number
        family = b""
        for line in exposition.split(b"\n"):  # and at nothing else: a label may hold other ends of lines
            if line.startswith(_HELP):
                family = line.split(b" ", 3)[2]
                if family not in heads:
                    heads[family] = [line]
                    samples[family] = []
            elif line.startswith(b"#"):
                if line not in heads[family] and len(heads[family]) < 2:
                    heads[family].append(line)
            elif line:
                samples[family].append(_labelled(line, label))
    return b"".join(b"\n".join([*heads[family], *samples[family], b""]) for family in heads)


def _labelled(sample: bytes, label: bytes) -> bytes:
    name, brace, rest = sample.partition(b"{")
    if brace and b" " not in name:
        separator = b"" if rest.startswith(b"}") else b","
        return name + b"{" + label + separator + rest
    name, _, rest = sample.partition(b" ")
    return name + b"{" + label + b"} " + rest
