"""What `headrace bench` measures: inputs, baselines, cases, and how they are timed. Knows no tables and no flags."""
