"""Guided decoding: what an answer's text must look like, as masks over the tokens that may come next."""
