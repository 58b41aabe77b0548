"""`vllm bench serve` as vLLM has it, for any build of vLLM; runs in that peer's environment.

The CPU build has another distribution name, which the `vllm` command stumbles over before it reads its arguments.
"""

import argparse

from vllm.benchmarks.serve import add_cli_args, main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_cli_args(parser)
    main(parser.parse_args())
