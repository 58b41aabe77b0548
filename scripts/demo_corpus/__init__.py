"""The demo model's corpus: a grammar of our own writing.

Owns the public face of the grammar. Does not own tokenizing or training: see train_demo_model.py.
"""

from demo_corpus.documents import ASSISTANT, SYSTEM, USER, Document, Turn
from demo_corpus.mixture import held_out_documents, long_documents, training_documents

__all__ = [
    "ASSISTANT",
    "SYSTEM",
    "USER",
    "Document",
    "Turn",
    "held_out_documents",
    "long_documents",
    "training_documents",
]
