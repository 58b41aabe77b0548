"""What `headrace bench` measures: inputs, baselines, cases, how they are timed, and the tables. Knows no flags."""
