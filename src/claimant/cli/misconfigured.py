"""The error of everything that is configured wrongly, apart from what a job's declaration refuses.

A command answers it with the exit code of its own bad usage: `claimant run` with 125, the others with 2.
"""

from __future__ import annotations

from claimant._model.errors import Refused


class Misconfigured(Refused):
    """A file or a variable says what no option can be. The message names it, and never quotes a URL."""
