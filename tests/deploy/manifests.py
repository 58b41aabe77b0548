"""Reads the manifests under deploy/, as kustomize and Helm make them of what is there."""

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import render_chart

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
CHART = ROOT / "deploy" / "helm" / "headrace"
OVERLAYS = tuple(sorted(path.name for path in (KUBERNETES / "overlays").iterdir()))
RENDERED = ("base", *OVERLAYS, "chart")

Manifest = dict[str, Any]


@functools.cache
def rendered(name: str) -> tuple[Manifest, ...]:
    """The objects of the base, of an overlay by its name, or of the chart with its own values."""
    if name == "chart":
        return tuple(render_chart(CHART, {}, release="headrace"))
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here, whose kustomize makes the manifests")
    return kustomized(KUBERNETES / "base" if name == "base" else KUBERNETES / "overlays" / name)


def kustomized(directory: Path) -> tuple[Manifest, ...]:
    """What `kubectl kustomize` makes of a directory."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(directory)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(objects: tuple[Manifest, ...], kind: str) -> list[Manifest]:
    return [one for one in objects if one["kind"] == kind]


def pods(objects: tuple[Manifest, ...]) -> Iterator[Manifest]:
    """The pod templates of all Deployments."""
    for deployment in of_kind(objects, "Deployment"):
        yield deployment["spec"]["template"]


def containers(objects: tuple[Manifest, ...]) -> Iterator[Manifest]:
    for pod in pods(objects):
        yield from pod["spec"]["containers"]


def environment(container: Manifest) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container.get("env", [])}


def container_called(objects: tuple[Manifest, ...], name: str) -> Manifest:
    (found,) = (one for one in containers(objects) if one["name"] == name)
    return found


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """A selector with matchLabels, matchExpressions that say Exists, or bare labels as a Service has."""
    if "matchLabels" in selector or "matchExpressions" in selector:
        has_labels = matches(dict(selector.get("matchLabels", {})), labels)
        return has_labels and all(one["key"] in labels for one in selector.get("matchExpressions", []))
    return all(labels.get(name) == value for name, value in selector.items())
