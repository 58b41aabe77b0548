"""Endpoints from a Kubernetes cluster: its pods by label, or the EndpointSlices of a Service."""
