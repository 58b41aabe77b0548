"""What to look for in a cluster, as the setting `endpoint` says it with a `kube://` URL. Pure."""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.errors import SettingsError

SCHEME = "kube"
_EXPECTED = "give kube://NAMESPACE/pods or kube://NAMESPACE/services/NAME (no NAMESPACE: the gateway's own; *: all)"
_PARAMETERS = ("selector", "port", "kubeconfig", "context")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_SERVICE_LABEL = "kubernetes.io/service-name"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesTarget:
    """Pods by label, or the endpoints of a Service."""

    url: str
    """As it was given."""
    kind: Literal["pods", "endpointslices"]
    namespace: str | None
    """None: the gateway's own; `*`: all."""
    selector: str | None
    """Of labels; for pods None takes those that are labelled with a model."""
    port: str | None
    """Name or number, where no label gives it."""
    kubeconfig: str | None
    """A file; None: the pod's service account, else the usual file."""
    context: str | None
    """In that file; None: the current one."""

    def path(self, *, namespace: str) -> str:
        """Of the resource, on the API server."""
        base = "/api/v1" if self.kind == "pods" else "/apis/discovery.k8s.io/v1"
        within = "" if namespace == "*" else f"/namespaces/{namespace}"
        return f"{base}{within}/{self.kind}"


def parse_target(url: str) -> KubernetesTarget:
    """Raises SettingsError naming the URL."""

    def refuse(why: str) -> SettingsError:
        return SettingsError(f"endpoint {url!r}: {why}", param="endpoint")

    parts = urlsplit(url)
    namespace = unquote(parts.netloc)
    what, _, name = parts.path.strip("/").partition("/")
    if parts.scheme != SCHEME or parts.fragment:
        raise refuse(_EXPECTED)
    if namespace not in {"", "*"} and not _NAME.fullmatch(namespace):
        raise refuse(f"{namespace!r} is no namespace; {_EXPECTED}")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(given.keys() - set(_PARAMETERS)):
        raise refuse(f"there is no parameter {unknown[0]!r}; known are {', '.join(_PARAMETERS)}")
    if empty := [key for key, value in given.items() if not value]:
        raise refuse(f"the parameter {empty[0]!r} is empty")
    if what == "pods" and not name:
        kind: Literal["pods", "endpointslices"] = "pods"
        selector = given.get("selector")
    elif what == "services" and _NAME.fullmatch(name) and namespace != "*" and "selector" not in given:
        kind = "endpointslices"
        selector = f"{_SERVICE_LABEL}={name}"
    else:
        raise refuse(_EXPECTED)
    return KubernetesTarget(
        url=url,
        kind=kind,
        namespace=namespace or None,
        selector=selector,
        port=given.get("port"),
        kubeconfig=given.get("kubeconfig"),
        context=given.get("context"),
    )
