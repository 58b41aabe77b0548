"""Writes docs/reference/headers.md and docs/reference/routes.md from the tables in the code.

.venv/bin/python scripts/write_reference.py
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.gateway.http.own_headers import OWN_HEADERS
from headrace.gateway.routes import Route, RouteTraits, UsageForm
from headrace.server.api_table import OPERATIONS, Access

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
_HEADERS_HEAD = """\
# Headers

Made by `scripts/write_reference.py`; a test holds it to the code.

## The gateway's own

No `x-headrace-*` field of an endpoint's answer is relayed, so that what a client reads was said by the gateway in front
of it. [gateway.md](../gateway.md) tells what the gateway does, [routing.md](../routing.md) what the reasons mean.
"""
_ROUTES_HEAD = """\
# Routes

Made by `scripts/write_reference.py`; a test holds it to the code. What the specifications leave open stands in
[routes.md](../routes.md), what the gateway does with each route in [gateway.md](../gateway.md#routes).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRoute:
    """A route that the gateway answers itself, in words."""

    method: str
    path: str
    text: str


GATEWAY_ROUTES = (
    OwnRoute(method="GET", path="/health", text="200 while at least one endpoint takes requests; asks for no key"),
    OwnRoute(method="GET", path="/v1/models", text="the models of all endpoints that the key may use"),
    OwnRoute(method="GET", path="/v1/models/{model}", text="one of them"),
    OwnRoute(method="GET", path="/v1/usage", text="what the key has used, what that cost, what is left of its limits"),
)
"""On the port of clients, beside those of the endpoints."""

ADMIN_ROUTES = (
    OwnRoute(method="GET", path="/", text="the dashboard"),
    OwnRoute(method="GET", path="/metrics", text="Prometheus metrics, see [metrics.md](../metrics.md)"),
    OwnRoute(method="GET", path="/health", text="the same as on the port of clients"),
    OwnRoute(method="GET", path="/live", text="200 while the process answers"),
    OwnRoute(method="GET", path="/state", text="what the dashboard shows, as JSON"),
    OwnRoute(method="GET", path="/events", text="the same as server-sent events, one a second"),
    OwnRoute(
        method="GET",
        path="/admin/endpoints",
        text="endpoints and sources as they are; without `admin_api_key` for everybody",
    ),
    OwnRoute(method="POST", path="/admin/endpoints", text="add an endpoint, or change it"),
    OwnRoute(method="DELETE", path="/admin/endpoints", text="take back what was added"),
    OwnRoute(method="POST", path="/admin/endpoints/drain", text="no new requests to it"),
    OwnRoute(method="POST", path="/admin/endpoints/undrain", text="requests again"),
)
"""On the admin port. Those that change something need `admin_api_key`."""

_OTHER_HEADERS = (
    ("authorization, x-api-key", "request", "the client's key; the gateway's keys go no further"),
    ("x-session-id", "request", "what the policy `session` goes by; `--session-header` names another"),
    ("traceparent, tracestate", "request", "the client's trace, which goes on to the endpoint"),
    ("te", "request", "`trailers`: a stream's cost may follow it"),
    ("x-forwarded-for", "request to an endpoint", "the client's address, behind those that were there"),
    ("x-request-id", "both", "the client's, if it is at most 128 visible characters, else a new one"),
    (
        "x-ratelimit-limit-requests, -remaining-requests, -reset-requests",
        "answer",
        "the key's limit of requests a minute, what is left of it, when it will be whole again",
    ),
    ("x-ratelimit-limit-tokens, -remaining-tokens, -reset-tokens", "answer", "the same of tokens a minute"),
    ("retry-after", "answer", "seconds, on 429 and 503 where a time can be named"),
)
_WORDS: Mapping[UsageForm, str] = {"openai": "OpenAI", "responses": "`/v1/responses`", "anthropic": "Anthropic"}
_KEYS: Mapping[Access, str] = {"open": "none", "key": "a client's", "admin": "the operator's"}


def headers_page() -> str:
    """The whole page."""
    own = [(f"`{one.name.decode()}`", one.of, one.when, one.meaning, f"`{one.example}`") for one in OWN_HEADERS]
    others = [(", ".join(f"`{name}`" for name in names.split(", ")), of, text) for names, of, text in _OTHER_HEADERS]
    return "\n".join(
        [
            _HEADERS_HEAD,
            *_table(("field", "of", "where", "says", "for instance"), own),
            "\n## Others that it reads or sets\n",
            *_table(("field", "of", "says"), others),
            "\n## The server's\n",
            "`headrace serve` answers with `x-request-id`, and on Anthropic's routes with `request-id` too.",
            "",
        ]
    )


def routes_page() -> str:
    """The whole page."""
    served = [(f"{one.method.upper()} `{one.path}`", one.summary, _KEYS[one.access], one.tag) for one in OPERATIONS]
    relayed = [(f"`{route.value}`", *_of_traits(route.traits)) for route in Route]
    return "\n".join(
        [
            _ROUTES_HEAD,
            "## Gateway: answered by endpoints\n",
            "All of them are POST, and name a model unless there is only one.\n",
            *_table(("route", "prompt counted", "charged", "routed by prefix", "usage in the form of"), relayed),
            "\n## Gateway: answered by itself\n",
            *_table(("route", ""), [(f"{one.method} `{one.path}`", one.text) for one in GATEWAY_ROUTES]),
            "\n## Gateway: admin port\n",
            "Those that change something need the key `admin_api_key`.\n",
            *_table(("route", ""), [(f"{one.method} `{one.path}`", one.text) for one in ADMIN_ROUTES]),
            "\n## headrace serve\n",
            *_table(("route", "", "key", "kind"), served),
            "",
        ]
    )


def _of_traits(traits: RouteTraits) -> tuple[str, ...]:
    charged = "nothing" if traits.is_free else "prompt and completion" if traits.is_generating else "prompt"
    return (
        f"`{traits.prompt_param}`" if traits.is_counted else "no",
        charged,
        "yes" if traits.is_generating else "no",
        "" if traits.is_free else _WORDS[traits.usage_form],
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield f"| {' | '.join(row)} |"


PAGES = {"headers.md": headers_page, "routes.md": routes_page}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
