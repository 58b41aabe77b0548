"""Every manifest is one that Kubernetes takes, and says nothing that the code does not know."""

import argparse
import importlib.util
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry

from headrace.cli import gateway as gateway_command
from headrace.cli import serve as serve_command
from headrace.cli.launch import Sources
from headrace.errors import SettingsError
from headrace.gateway.discovery.kubernetes.objects import Pod
from headrace.gateway.discovery.kubernetes.translate import Rules, endpoints_of_pod
from headrace.gateway.settings import GatewaySettings
from headrace.gateway.telemetry.instruments import Instruments
from tests.deploy.manifests import (
    KUBERNETES,
    OVERLAYS,
    RENDERED,
    ROOT,
    Manifest,
    container_called,
    containers,
    environment,
    kustomized,
    matches,
    of_kind,
    pods,
    rendered,
)

_VERSIONS = ("1.27", pytest.param("1.34", marks=pytest.mark.slow))
_OUR_IMAGES = ("headrace-gateway", "headrace-engine")


@pytest.fixture(params=RENDERED)
def objects(request: pytest.FixtureRequest) -> tuple[Manifest, ...]:
    return rendered(request.param)


def settings_of(container: Manifest) -> dict[str, Any]:
    """The settings that the container's command would run with, by section."""
    command = {"gateway": gateway_command, "serve": serve_command}[container["args"][0]]
    arguments = command.parser().parse_args(container["args"][1:])
    sources = Sources(arguments, environment=environment(container))
    return {name: sources.resolve(kind, section=name).settings for name, kind in command.COMPONENTS.items()}


def ours(objects: tuple[Manifest, ...]) -> list[Manifest]:
    return [one for one in containers(objects) if any(name in one["image"] for name in _OUR_IMAGES)]


@pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed"
)
@pytest.mark.parametrize("version", _VERSIONS)
def test_kubernetes_takes_every_object(version: str) -> None:
    import kubernetes_validate

    unique = {json.dumps(one, sort_keys=True): one for name in RENDERED for one in rendered(name)}

    for one in unique.values():
        kubernetes_validate.validate(one, version, strict=True)


def test_objects_are_named_once(objects: tuple[Manifest, ...]) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]

    assert len(names) == len(set(names))


def test_every_setting_is_one_that_the_code_knows_and_takes(objects: tuple[Manifest, ...]) -> None:
    for container in ours(objects):
        resolved = settings_of(container)
        for name in environment(container):
            _, section, *field = name.split("_")
            assert getattr(resolved[section.lower()], "_".join(field).lower()) is not None


def test_no_service_can_set_a_setting_by_its_name(objects: tuple[Manifest, ...]) -> None:
    """A Service called headrace-gateway makes HEADRACE_GATEWAY_PORT=tcp://... of every pod beside it."""
    assert all(pod["spec"]["enableServiceLinks"] is False for pod in pods(objects))


def test_the_gateway_listens_where_its_ports_and_probes_say(objects: tuple[Manifest, ...]) -> None:
    container = container_called(objects, "gateway")
    settings: GatewaySettings = settings_of(container)["gateway"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}

    assert ports == {"http": settings.port, "admin": settings.admin_port}
    assert (settings.host, settings.admin_host) == ("0.0.0.0", "0.0.0.0")
    liveness, readiness = (container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe"))
    assert (liveness, readiness) == ({"path": "/live", "port": "admin"}, {"path": "/health", "port": "http"})


def test_a_pod_has_the_time_to_drain(objects: tuple[Manifest, ...]) -> None:
    for pod in pods(objects):
        for container in pod["spec"]["containers"]:
            if container in ours(objects):
                resolved = settings_of(container)
                drain_s = resolved.get("gateway", resolved.get("server")).drain_timeout_s
                pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
                assert pod["spec"]["terminationGracePeriodSeconds"] >= drain_s + pause_s + 10


def test_every_probe_and_policy_names_a_port_that_there_is(objects: tuple[Manifest, ...]) -> None:
    for pod in pods(objects):
        ports = {port["name"] for one in pod["spec"]["containers"] for port in one["ports"]}
        for container in pod["spec"]["containers"]:
            probes = [container[name] for name in container if name.endswith("Probe")]
            assert {probe["httpGet"]["port"] for probe in probes if "httpGet" in probe} <= ports
        for policy in of_kind(objects, "NetworkPolicy"):
            if matches(policy["spec"]["podSelector"], pod["metadata"]["labels"]):
                named = {port["port"] for rule in policy["spec"].get("ingress", []) for port in rule.get("ports", [])}
                assert named <= ports


def test_every_selector_finds_a_pod(objects: tuple[Manifest, ...]) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(objects)]
    selectors = [
        *(one["spec"]["selector"] for kind in ("Deployment", "Service") for one in of_kind(objects, kind)),
        *(one["spec"]["selector"] for one in of_kind(objects, "PodDisruptionBudget")),
        *(one["spec"]["podSelector"] for one in of_kind(objects, "NetworkPolicy")),
    ]

    for selector in selectors:
        assert selector
        assert [any(matches(selector, one) for one in labels)] == [True], selector


def test_a_deployment_selects_its_own_pods_only(objects: tuple[Manifest, ...]) -> None:
    for deployment in of_kind(objects, "Deployment"):
        found = [pod for pod in pods(objects) if matches(deployment["spec"]["selector"], pod["metadata"]["labels"])]
        assert found == [deployment["spec"]["template"]]


def test_a_service_goes_to_ports_that_its_pods_have(objects: tuple[Manifest, ...]) -> None:
    for service in of_kind(objects, "Service"):
        for pod in pods(objects):
            if matches(service["spec"]["selector"], pod["metadata"]["labels"]):
                named = {port["name"] for one in pod["spec"]["containers"] for port in one["ports"]}
                assert {port["targetPort"] for port in service["spec"]["ports"]} <= named


def test_the_autoscaler_reads_metrics_that_the_gateway_has(objects: tuple[Manifest, ...]) -> None:
    registry = CollectorRegistry()
    instruments = Instruments(registry)
    known = {family.name for family in registry.collect()}
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler")
    metrics = [one["pods"]["metric"]["name"] for one in scaler["spec"]["metrics"] if one["type"] == "Pods"]

    assert instruments is not None
    assert metrics
    assert set(metrics) <= known
    assert scaler["spec"]["scaleTargetRef"]["name"] == "headrace-gateway"


def test_the_gateway_has_the_rights_that_its_endpoints_need_and_no_others(objects: tuple[Manifest, ...]) -> None:
    (role,) = of_kind(objects, "Role")
    (binding,) = of_kind(objects, "RoleBinding")
    (account,) = of_kind(objects, "ServiceAccount")

    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    assert environment(container_called(objects, "gateway"))["HEADRACE_GATEWAY_ENDPOINT"] == "kube:///pods"
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == [account["metadata"]["name"]]
    gateway = next(pod for pod in pods(objects) if pod["spec"]["containers"][0]["name"] == "gateway")
    assert gateway["spec"]["serviceAccountName"] == account["metadata"]["name"]


def test_nothing_of_ours_runs_as_root_or_writes_to_its_image(objects: tuple[Manifest, ...]) -> None:
    for pod in pods(objects):
        for container in pod["spec"]["containers"]:
            if container in ours(objects):
                assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"] is True
                assert context["allowPrivilegeEscalation"] is False
                assert context["capabilities"] == {"drop": ["ALL"]}


def test_images_have_versions(objects: tuple[Manifest, ...]) -> None:
    for container in containers(objects):
        assert re.fullmatch(r"\S+:v?\d[\w.-]*", container["image"]), container["image"]


@pytest.mark.parametrize("overlay", ["vllm", "sglang", "headrace-engine"])
def test_engines_of_an_overlay_are_found_with_their_kv_events(overlay: str) -> None:
    objects = rendered(overlay)
    template = next(pod for pod in pods(objects) if pod["spec"]["containers"][0]["name"] == "engine")
    running = {
        "metadata": template["metadata"] | {"name": "engine", "namespace": "default"},
        "spec": template["spec"],
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }

    (found,) = endpoints_of_pod(msgspec.json.decode(json.dumps(running), type=Pod), Rules(origin=""))

    assert found.spec.url == "http://10.0.0.1:8000"
    assert found.spec.engine == overlay.removesuffix("-engine")
    assert found.spec.kv_events is not None
    assert (found.spec.kv_events.publish, found.spec.kv_events.replay) == ("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558")


@pytest.mark.parametrize("overlay", ["vllm", "sglang"])
def test_the_engines_kv_event_config_is_json_with_the_ports_of_the_labels(overlay: str) -> None:
    arguments = container_called(rendered(overlay), "engine")["args"]
    (text,) = (one.partition("=")[2] for one in arguments if one.startswith("--kv-events-config="))

    config = json.loads(text)

    assert (config["publisher"], config["endpoint"]) == ("zmq", "tcp://*:5557")
    assert config["replay_endpoint"] == "tcp://*:5558"


def test_the_policy_lets_the_gateway_reach_the_engines() -> None:
    for overlay in ("vllm", "sglang", "headrace-engine"):
        objects = rendered(overlay)
        (policy,) = (one for one in of_kind(objects, "NetworkPolicy") if one["metadata"]["name"] == "headrace-gateway")
        (to_engines, *_) = policy["spec"]["egress"]
        engine = next(pod for pod in pods(objects) if pod["spec"]["containers"][0]["name"] == "engine")
        assert any(matches(peer["podSelector"], engine["metadata"]["labels"]) for peer in to_engines["to"])


def test_the_remote_tokenizer_overlay_really_switches_it_on() -> None:
    def mode(name: str) -> str:
        settings: GatewaySettings = settings_of(container_called(rendered(name), "gateway"))["gateway"]
        return settings.tokenizer

    assert mode("remote-tokenizer") == "remote"
    assert mode("base") != "remote"


def test_the_redis_overlay_really_shares_limits_and_checks_keys() -> None:
    objects = rendered("redis")
    container = container_called(objects, "gateway")
    admission = settings_of(container)["admission"]
    (service,) = (one for one in of_kind(objects, "Service") if one["metadata"]["name"] == "headrace-redis")
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "keys")

    assert admission.state == f"redis://headrace-redis:{service['spec']['ports'][0]['port']}/0"
    assert admission.keys_file == f"{mount['mountPath']}/keys.yaml"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
@pytest.mark.parametrize("engine", ["vllm", "sglang", "headrace-engine"])
def test_components_can_be_combined(engine: str, tmp_path: Path) -> None:
    def relative(*parts: str) -> str:
        return os.path.relpath(KUBERNETES.joinpath(*parts).resolve(), tmp_path.resolve())

    wanted = [engine, "redis", "remote-tokenizer"]
    content = {"resources": [relative("base")], "components": [relative("components", name) for name in wanted]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))

    objects = kustomized(tmp_path)

    names = {one["metadata"]["name"] for one in of_kind(objects, "Deployment")}
    settings = settings_of(container_called(objects, "gateway"))
    assert names == {"headrace-gateway", "headrace-engine", "headrace-redis"}
    assert settings["gateway"].tokenizer == "remote"
    assert settings["admission"].state.startswith("redis://")


def test_every_overlay_is_named_in_the_docs() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()

    assert [name for name in OVERLAYS if f"`{name}`" not in page] == []


def test_an_unknown_setting_would_be_noticed() -> None:
    sources = argparse.Namespace(config=None)
    with pytest.raises(SettingsError, match="no_such"):
        Sources(sources, environment={"HEADRACE_GATEWAY_NO_SUCH": "1"}).resolve(GatewaySettings, section="gateway")
