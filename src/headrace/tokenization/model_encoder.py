"""What encodes the texts of one model now: the reference at first, with shortcuts as they are admitted, and without
those that were ever wrong. Who compares and when is not its business."""

import logging
import threading
from typing import Literal

from headrace.tokenization.admission import Admission
from headrace.tokenization.fastokens_tokenizer import EncodeOne, one_by_one
from headrace.tokenization.records import Namespace
from headrace.tokenization.segments import CutRules, no_cuts
from headrace.tokenization.tokenizer import Tokenizer
from headrace.tokenization.works import EncodeTexts

_LOG = logging.getLogger(__name__)

Shortcut = Literal["encoder", "cuts", "cache"]


class ModelEncoder:
    """The encoder and rules of one tokenizer. Its namespaces change whenever something known may have been wrong."""

    def __init__(self, reference: Tokenizer) -> None:
        self.reference = reference
        self.encoder = reference
        self.encoder_reason = "not compared yet"
        self.rules: CutRules = no_cuts("not compared yet")
        self.is_keeping = True
        """Whether encoded texts may be kept and used again."""
        self.is_decided = threading.Event()
        """Clear while the shortcuts are being compared with the reference."""
        self.is_decided.set()
        self.encode_one: EncodeOne | None = None
        """The accelerated encoder; None where the reference encodes."""
        self._num_drops = 0
        self._rebuild()

    @property
    def is_accelerated(self) -> bool:
        return self.encode_one is not None

    def work(self, *, add_special_tokens: bool) -> EncodeTexts:
        return self._works[add_special_tokens]

    def namespace(self, *, add_special_tokens: bool) -> Namespace:
        return self._namespaces[add_special_tokens]

    def admit(self, admission: Admission) -> None:
        """Use what was admitted from the next text on."""
        self.encoder = admission.encoder or self.reference
        self.encoder_reason = admission.encoder_reason
        self.rules = admission.cut_rules
        self._rebuild()
        self.is_decided.set()

    def drop(self, shortcut: Shortcut, *, why: str) -> None:
        """Never use `shortcut` again, nor anything that was encoded so far."""
        if shortcut == "encoder":
            self.encoder, self.encoder_reason = self.reference, why
        elif shortcut == "cuts":
            self.rules = no_cuts(why)
        else:
            self.is_keeping = False
        self._num_drops += 1
        self._rebuild()
        _LOG.error("%s: %s is switched off: %s", self.reference.name, shortcut, why)

    def _rebuild(self) -> None:
        fingerprint = f"{self.reference.fingerprint}.{self._num_drops}"
        flags = (False, True)
        self.encode_one = one_by_one(self.encoder) if self.encoder is not self.reference else None
        self._works = {flag: EncodeTexts(self.encoder, flag, self.rules) for flag in flags}
        self._namespaces = {flag: Namespace(f"{fingerprint}.{flag}") for flag in flags}

    def __repr__(self) -> str:
        encoder = type(self.encoder).__name__
        return f"ModelEncoder({self.reference.name!r}, {encoder}, cuts={bool(self.rules)}, keeping={self.is_keeping})"
