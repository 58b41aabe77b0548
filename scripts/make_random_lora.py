"""Write a LoRA adapter with random weights for a model directory, in PEFT's layout, for tests and benchmarks.

python scripts/make_random_lora.py --model out/random-135m --rank 16 out/random-lora
"""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.engine.lora.adapter_config import ADAPTED_LAYERS
from headrace.testing.random_lora import write_random_lora


def main() -> None:
    """Read the arguments and write the adapter."""
    parser = argparse.ArgumentParser(description="Write a random LoRA adapter in PEFT's layout.")
    parser.add_argument("out", type=Path, help="the directory to write")
    parser.add_argument("--model", type=Path, required=True, help="the directory of the model that it adapts")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=float, default=32.0)
    parser.add_argument("--targets", nargs="+", choices=ADAPTED_LAYERS, default=ADAPTED_LAYERS, metavar="LAYER")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_random_lora(
        arguments.out,
        model=arguments.model,
        rank=arguments.rank,
        alpha=arguments.alpha,
        targets=arguments.targets,
        seed=arguments.seed,
    )
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
