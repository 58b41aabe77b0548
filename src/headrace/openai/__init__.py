"""The OpenAI wire, for the engine server and the gateway alike: requests, responses, errors and server-sent events.

Knows nothing of engines, tokenizers, sockets or event loops.
"""
