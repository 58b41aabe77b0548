"""Sending token ids in place of text: what an endpoint takes, and what may be sent so."""
