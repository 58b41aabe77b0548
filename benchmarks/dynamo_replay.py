"""Our routing beside that of Dynamo's KV router on one trace: `headrace bench routing --trace TRACE`.

.venv/bin/python benchmarks/dynamo_replay.py TRACE [--endpoints 8] [--requests N] [--json]
"""

import sys

from headrace.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "routing", "--trace", *sys.argv[1:]]))
