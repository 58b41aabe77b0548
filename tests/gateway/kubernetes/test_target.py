"""What `kube://` URLs ask for."""

import pytest

from headrace.errors import SettingsError
from headrace.gateway.discovery.kubernetes.target import parse_target


@pytest.mark.parametrize(
    ("url", "path", "selector"),
    [
        ("kube://engines/pods", "/api/v1/namespaces/engines/pods", None),
        ("kube:///pods", "/api/v1/namespaces/own/pods", None),
        ("kube://*/pods?selector=app%3Dvllm,tier+in+(a)", "/api/v1/pods", "app=vllm,tier in (a)"),
        (
            "kube://engines/services/vllm",
            "/apis/discovery.k8s.io/v1/namespaces/engines/endpointslices",
            "kubernetes.io/service-name=vllm",
        ),
    ],
)
def test_a_url_names_a_resource(url: str, path: str, selector: str | None) -> None:
    target = parse_target(url)

    assert target.path(namespace=target.namespace or "own") == path
    assert target.selector == selector


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("kube://engines", "give kube://NAMESPACE/pods"),
        ("kube://engines/deployments/a", "give kube://NAMESPACE/pods"),
        ("kube://engines/pods/a", "give kube://NAMESPACE/pods"),
        ("kube://Engines/pods", "is no namespace"),
        ("kube://*/services/vllm", "give kube://NAMESPACE/pods"),
        ("kube://a/services/vllm?selector=b", "give kube://NAMESPACE/pods"),
        ("kube://a/pods?label=b", "there is no parameter 'label'"),
        ("kube://a/pods?port=", "'port' is empty"),
    ],
)
def test_a_url_that_names_none_is_refused(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        parse_target(url)
