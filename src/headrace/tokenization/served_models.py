"""The encoder of each model that the service serves: registered, compared with its reference, warm in every thread.

How a text finds its way to an encoder is not known here.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from headrace.aio.bridge import run_in_loop
from headrace.errors import ModelNotFoundError
from headrace.tokenization.admission import Admission, HasShortcuts, admit
from headrace.tokenization.deferred import DeferredTokenizer
from headrace.tokenization.definition import Definition
from headrace.tokenization.examiner.examination import Examination, ExaminerError, Examiners
from headrace.tokenization.examiner.wire import Admit, Facts, Verdict
from headrace.tokenization.freed_memory import give_back_freed_memory
from headrace.tokenization.lanes import Lane
from headrace.tokenization.load import load_tokenizer, read_tokenizer
from headrace.tokenization.model_encoder import ModelEncoder
from headrace.tokenization.settings import TokenizationSettings
from headrace.tokenization.tokenizer import Tokenizer
from headrace.tokenization.warm_up import WarmUp

_LOG = logging.getLogger(__name__)

_NO_EXAMINER = "%s is compared with its reference in this process, which takes more memory: %s"
_WARM_UP_TIMEOUT_S = 2.0
_LOOK_S = 0.05


class ServedModels:
    """By name. Use it from one event loop, or from none."""

    def __init__(
        self, settings: TokenizationSettings, *, lanes: Sequence[Lane], upkeep: Lane, examiners: Examiners
    ) -> None:
        """`lanes` encode and are warmed; comparisons run in `upkeep`, or are heard of there from `examiners`."""
        self._settings = settings
        self._lanes = lanes
        self._upkeep = upkeep
        self._examiners = examiners
        self._encoders: dict[str, ModelEncoder] = {}
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._encoders)

    def __repr__(self) -> str:
        return f"ServedModels({', '.join(sorted(self._encoders)) or 'none'})"

    def close(self) -> None:
        """Give comparisons that run up."""
        self._is_closing = True

    def encoder(self, model: str) -> ModelEncoder:
        """Raises ModelNotFoundError."""
        try:
            return self._encoders[model]
        except KeyError:
            known = ", ".join(sorted(self._encoders)) or "none"
            message = f"the model {model!r} does not exist; models here: {known}"
            raise ModelNotFoundError(message, param="model") from None

    def load_deferred(self, path: str | Path) -> tuple[Tokenizer, Examination | None]:
        """The tokenizer in `path`, and the examiner that compares its shortcuts; without one it is to be done here.

        Blocking, for threads. Raises TokenizationError naming the path.
        """
        found = read_tokenizer(path, offline=self._settings.offline)
        if not isinstance(found, Definition):
            return load_tokenizer(found), None
        choice, uses_cuts = self._settings.encoder, self._settings.uses_cuts
        try:
            examination = self._examiners.start(Admit(definition=found, choice=choice, uses_cuts=uses_cuts))
            try:
                return DeferredTokenizer(found, examination.receive(Facts)), examination
            except BaseException:
                self._examiners.finish(examination)
                raise
        except ExaminerError as error:
            if self._is_closing:
                raise
            _LOG.warning(_NO_EXAMINER, found.name, error.message)
            return found.load(), None

    def register(self, model: str, tokenizer: Tokenizer, *, examination: Examination | None = None) -> None:
        """See `TokenizationService.register`. With `examination` its verdict is heard; it is finished here."""
        encoder = self._encoders[model] = ModelEncoder(tokenizer)
        if examination is None:
            for lane in self._lanes:
                lane.warm_up(partial(tokenizer.encode_batch, ["warm-up"], add_special_tokens=False))
            if not isinstance(tokenizer, HasShortcuts):
                return
            if self._settings.encoder == "reference" and not self._settings.uses_cuts:
                return
        encoder.is_decided.clear()
        self._upkeep.warm_up(partial(self._admit, encoder, examination, _running_loop()))

    def _admit(
        self, encoder: ModelEncoder, examination: Examination | None, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        """In the upkeep thread: find out which shortcuts `encoder` may take, and let it take them."""
        admission = Admission.refused("the comparison failed")
        try:
            if examination is None:
                admission = self._compare(encoder.reference)
            else:
                admission = self._hear(encoder.reference, examination)
            if admission.encoder is not None and not self._is_closing:
                self._warm_up_lanes(admission.encoder, starts=examination is None)
        finally:
            _call_in(loop, _begin_with, encoder, admission)
        if isinstance(encoder.reference, DeferredTokenizer) and admission.encoder is not None:
            self._let_go(encoder)
        give_back_freed_memory()

    def _compare(self, reference: Tokenizer) -> Admission:
        return admit(
            reference,
            choice=self._settings.encoder,
            uses_cuts=self._settings.uses_cuts,
            should_stop=lambda: self._is_closing,
        )

    def _hear(self, reference: Tokenizer, examination: Examination) -> Admission:
        """The verdict of `examination`; where there is none the comparison is made here."""
        try:
            verdict = examination.receive(Verdict)
        except ExaminerError as error:
            if self._is_closing:
                return Admission.refused("the service was closed")
            _LOG.warning(_NO_EXAMINER, reference.name, error.message)
            return self._compare(reference)
        finally:
            self._examiners.finish(examination)
        assert isinstance(reference, DeferredTokenizer)
        _LOG.info("%s: %s; cuts: %s", reference.name, verdict.encoder_reason, verdict.rules.reason)
        return Admission(
            encoder=reference.accelerated() if verdict.is_accelerated else None,
            encoder_reason=verdict.encoder_reason,
            cut_rules=verdict.rules.made(),
        )

    def _let_go(self, encoder: ModelEncoder) -> None:
        """Of the reference, if it had to encode until now."""
        while not encoder.is_decided.wait(_LOOK_S) and not self._is_closing:
            pass
        assert isinstance(encoder.reference, DeferredTokenizer)
        encoder.reference.let_go()

    def _warm_up_lanes(self, encoder: Tokenizer, *, starts: bool) -> None:
        """Without `starts` lanes that nothing was sent to yet are left until something is."""
        warm_up = WarmUp(encoder)
        num_threads = sum(lane.warm_up(warm_up, starts=starts) for lane in self._lanes)
        if starts:
            warm_up.wait(num_threads=num_threads, timeout_s=_WARM_UP_TIMEOUT_S, should_stop=lambda: self._is_closing)


def _begin_with(encoder: ModelEncoder, admission: Admission) -> None:
    """In the event loop's thread, which encodes too: its first call comes now, not with the first request."""
    try:
        if admission.encoder is not None:
            admission.encoder.encode_batch(["warm-up"], add_special_tokens=False)
    finally:
        encoder.admit(admission)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _call_in(loop: asyncio.AbstractEventLoop | None, func: Callable[..., None], *args: object) -> None:
    """In the loop if there is one that is not closed, else here."""
    try:
        if loop is not None:
            run_in_loop(loop, func, *args)
            return
    except RuntimeError:
        pass
    func(*args)
