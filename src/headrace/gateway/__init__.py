"""The token-aware gateway: one OpenAI-compatible address in front of a fleet of engines.

`handle.py` is the page to read first; `app.py` assembles the parts, `run.py` is what the command line calls. Imports
neither torch nor the engine.
"""
