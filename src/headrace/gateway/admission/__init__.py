"""Whether, when and at what price a request may go on: keys, limits, budgets, priorities. Counts exact tokens, before
any queue. The modules that decide are pure; `gate`, `local_state`, `shared_state`, `key_watch` and `control` wait."""
