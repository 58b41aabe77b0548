"""The Helm chart makes what the kustomize base makes, and its values do what they say."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.deploy.chart import render_chart, render_text
from tests.deploy.manifests import CHART, Manifest, container_called, environment, of_kind, pods, rendered

_ONLY_IN_CHART = ("app.kubernetes.io/instance", "imagePullPolicy")


def chart(**values: Any) -> tuple[Manifest, ...]:
    return tuple(render_chart(CHART, values, release="headrace"))


def without(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {name: without(one, names) for name, one in value.items() if name not in names}
    return [without(one, names) for one in value] if isinstance(value, list) else value


def by_name(objects: tuple[Manifest, ...]) -> dict[tuple[str, str], Manifest]:
    return {(one["kind"], one["metadata"]["name"]): without(one, _ONLY_IN_CHART) for one in objects}


def test_the_chart_with_its_own_values_is_the_base() -> None:
    made, base = by_name(chart()), by_name(rendered("base"))

    assert made.keys() == base.keys()
    for name, one in base.items():
        assert made[name] == one, name


def test_the_values_are_what_their_schema_allows() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    validator = Draft7Validator(schema)

    assert list(validator.iter_errors(values)) == []
    assert set(schema["properties"]) - {"global"} == set(values)
    assert [error.path[0] for error in validator.iter_errors(values | {"tokenizer": "none"})] == ["tokenizer"]
    assert list(validator.iter_errors(values | {"env": {"AIBRIX_X": "1"}}))


def test_each_value_arrives_where_it_should() -> None:
    objects = chart(
        replicas=5,
        endpoint="kube:///services/vllm",
        watchesEndpointSlices=True,
        tokenizer="remote",
        drainTimeoutSeconds=30,
        redis="redis://r:6379/1",
        keysSecret="keys",
        env={"HEADRACE_GATEWAY_POLICY": "least_loaded", "HEADRACE_GATEWAY_MAX_ATTEMPTS": 2},
        image={"tag": "1.2.3"},
        resources={"limits": {"memory": "1Gi"}},
        autoscaling={"enabled": False},
    )
    container = container_called(objects, "gateway")
    (deployment,) = of_kind(objects, "Deployment")
    (role,) = of_kind(objects, "Role")
    (pod,) = pods(objects)

    assert deployment["spec"]["replicas"] == 5
    assert container["image"] == "ghcr.io/headrace/headrace-gateway:1.2.3"
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert pod["spec"]["terminationGracePeriodSeconds"] == 60
    assert pod["spec"]["volumes"][1]["secret"]["secretName"] == "keys"
    assert role["rules"][0]["resources"] == ["endpointslices"]
    assert of_kind(objects, "HorizontalPodAutoscaler") == []
    assert environment(container) | {
        "HEADRACE_GATEWAY_ENDPOINT": "kube:///services/vllm",
        "HEADRACE_GATEWAY_TOKENIZER": "remote",
        "HEADRACE_GATEWAY_DRAIN_TIMEOUT_S": "30s",
        "HEADRACE_ADMISSION_STATE": "redis://r:6379/1",
        "HEADRACE_ADMISSION_KEYS_FILE": "/etc/headrace/keys/keys.yaml",
        "HEADRACE_GATEWAY_POLICY": "least_loaded",
        "HEADRACE_GATEWAY_MAX_ATTEMPTS": "2",
    } == environment(container)


def test_the_version_of_the_chart_is_that_of_the_manifests() -> None:
    meta = yaml.safe_load((CHART / "Chart.yaml").read_text())
    image = container_called(rendered("base"), "gateway")["image"]

    assert image.endswith(f":{meta['appVersion']}")


@pytest.mark.parametrize("text", ["{{ include .Values.a }}", "{{ .Values.a | upper }}", "{{ lookup }}"])
def test_a_construct_that_is_not_known_is_an_error(text: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        render_text(text, {"Values": {"a": "b"}})


@pytest.mark.skipif(shutil.which("helm") is None, reason="there is no helm here")
@pytest.mark.parametrize(
    "values", [{}, {"redis": "redis://r:6379/1", "keysSecret": "k", "env": {"HEADRACE_GATEWAY_POLICY": "session"}}]
)
def test_helm_makes_the_same(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    done = subprocess.run(
        ["helm", "template", "headrace", str(CHART), "--values", str(tmp_path / "values.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert by_name(tuple(one for one in yaml.safe_load_all(done.stdout) if one)) == by_name(chart(**values))
