"""What engines say of their KV caches: vLLM's events over ZMQ, from the bytes to the prefix index."""
