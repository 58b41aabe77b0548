"""HTTP/1.1 towards clients: limits, time-outs, framing and flow control. Knows nothing of models or endpoints."""
