"""Tokenizers that run elsewhere: a client for engines' /tokenize endpoints and a pool of them per model."""

from headrace.tokenization.remote.endpoints import EndpointSource, RemoteEndpoint, StaticEndpoints
from headrace.tokenization.remote.pool import RemoteTokenizerPool
from headrace.tokenization.remote.settings import RemotePoolSettings, RemoteTokenizerSettings
from headrace.tokenization.remote.tokenizer import RemoteTokenizer

__all__ = [
    "EndpointSource",
    "RemoteEndpoint",
    "RemotePoolSettings",
    "RemoteTokenizer",
    "RemoteTokenizerPool",
    "RemoteTokenizerSettings",
    "StaticEndpoints",
]
