"""Behind `benchmarks/guard.py`: two trees of the same repository, measured in turns with the same code."""
