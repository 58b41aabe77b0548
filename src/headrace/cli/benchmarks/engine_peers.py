"""Which engines can be measured: ours in its variants, and the peers that were installed beside it."""

import hashlib
import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from headrace.cli.benchmarks import engine_ours
from headrace.cli.benchmarks.engine_bars import OURS, OURS_INT8
from headrace.cli.benchmarks.engine_child import Json
from headrace.cli.benchmarks.engine_process import EngineSpec
from headrace.errors import SettingsError

REFERENCE = "transformers"
"""The peer whose ids in float32 the others' are compared with."""
_MANIFEST = "peer.json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the installer of the peers writes of each."""

    name: str
    version: str
    python: str
    runner: str
    converted_suffix: str | None = None
    environment: dict[str, str] = {}


def our_engines(model: Path, common: Json) -> tuple[list[EngineSpec], list[str]]:
    """bfloat16, and 8 bits where that is built; what is missing, in words."""
    bf16 = _ours(OURS, common | {"dtype": "bfloat16"})
    int8 = replace(_ours(OURS_INT8, bf16.options | {"quantization": "int8"}), slots=("single",), is_required=False)
    try:
        engine_ours.engine_args(model, int8.options)
    except (TypeError, SettingsError) as error:
        return [bf16], [f"{OURS_INT8} is not measured: {error}"]
    return [bf16, int8], []


def our_float32(common: Json) -> EngineSpec:
    """The engine whose ids must be the reference's."""
    return _ours(f"{OURS} float32", common | {"dtype": "float32"})


def _ours(name: str, options: Json) -> EngineSpec:
    versions = [f"{package} {importlib.metadata.version(package)}" for package in ("headrace", "torch")]
    runner = Path(engine_ours.__file__)
    return EngineSpec(
        name=name,
        version=", ".join(versions),
        python=Path(sys.executable),
        runner=runner,
        options=options,
        is_required=True,
    )


def installed_peers(root: Path, common: Json) -> list[EngineSpec]:
    """Those with a manifest under `root`, ordered by their folders. Raises SettingsError for a broken one."""
    specs = []
    for path in sorted(root.glob(f"*/{_MANIFEST}")):
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except msgspec.DecodeError as error:
            raise SettingsError(
                f"{path} is not a peer's manifest: {error}; install it again", param="peers-root"
            ) from None
        specs.append(_peer(manifest, common))
    return specs


def _peer(manifest: Manifest, common: Json) -> EngineSpec:
    return EngineSpec(
        name=manifest.name,
        version=manifest.version,
        python=Path(manifest.python),
        runner=Path(manifest.runner),
        options={**common, "dtype": "bfloat16"},
        environment=manifest.environment,
        converted_suffix=manifest.converted_suffix,
    )


def reference_of(peers: Sequence[EngineSpec]) -> EngineSpec | None:
    """transformers in float32, if it is there."""
    found = next((peer for peer in peers if peer.name == REFERENCE), None)
    if found is None:
        return None
    return replace(found, name=f"{REFERENCE} float32", options=found.options | {"dtype": "float32"})


def converted_path(spec: EngineSpec, *, model: Path, root: Path) -> Path:
    """Where the peer's own form of this model is kept: another weights file or path, another name."""
    assert spec.converted_suffix is not None
    weights = sorted(model.glob("*.safetensors"))
    what = [str(model.resolve()), *(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in weights)]
    digest = hashlib.sha256("\n".join(what).encode()).hexdigest()[:12]
    return root / "converted" / f"{model.name}-{digest}{spec.converted_suffix}"
