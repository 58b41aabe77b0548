"""A process of its own: the application of deploy/ray on a Ray cluster, behind Ray Serve's proxies, until its input
ends. Arguments: the model's directory, and the port."""

import importlib.util
import sys
from pathlib import Path

import ray
from ray import serve

APPLICATION = Path(__file__).parents[2] / "deploy" / "ray" / "headrace_app.py"


def main(model: str, port: int) -> None:
    spec = importlib.util.spec_from_file_location("headrace_app", APPLICATION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ray.init(address="local", include_dashboard=False)
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    engine = {"model": model, "kv_cache_memory_bytes": 16 << 20}
    handle = serve.run(module.build({"engine": engine, "ray": {"num_cpus": 0.5}}), name="headrace", route_prefix="/")
    handle.ready_urls.remote().result(timeout_s=120)
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
