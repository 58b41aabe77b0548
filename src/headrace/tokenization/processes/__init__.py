"""Tokenizers in processes of their own: a lane that shares nothing with the GIL of the event loop."""
