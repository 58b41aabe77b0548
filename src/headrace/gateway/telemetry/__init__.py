"""What is told of requests: metrics, traces, access log and decisions."""
