"""`headrace bench gateway`: our gateway beside its peers, on one core each, in front of the same fake endpoint."""
