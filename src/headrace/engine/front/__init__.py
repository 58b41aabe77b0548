"""The engine's front end, in the caller's process: text in, token ids to the core, and back."""
