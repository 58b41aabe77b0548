"""HTTP/1.1 towards endpoints: connections, their reuse, their time-outs. Knows nothing of clients or of choosing."""
