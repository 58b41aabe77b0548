"""Keeps Python's garbage collector out of the way of requests.

Nearly all that a request leaves behind goes by reference counting. The collector, as it is set by default, looks at
all modules, classes and the prefix index again and again: a tenth of the processor time, in pauses of 50 ms.
"""

import gc

_THRESHOLDS = (20_000, 20, 50)
"""Objects more than before that make it look at the young ones; rounds of these, then of the middle-aged."""


def settle() -> None:
    """What is there now stays for good, and is looked at no more; what comes is looked at more seldom. For the whole
    process, so for whoever runs it, when everything is loaded and started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
