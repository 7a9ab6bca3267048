"""Events as log records: logger "claimant", one line each, the event's fields under `record.claimant`.

An exception that nobody else will see is logged with its traceback.
"""

from __future__ import annotations

import sys

from claimant._model.events import Event
from claimant._model.names import shown


def log_event(event: Event) -> None:
    """Log one event."""
    if event.level in ("debug", "info") and "logging" not in sys.modules:
        return  # nobody can have asked for it, and the import would cost a short-lived command more than its claim
    import logging  # by the first event, and not by every `import claimant`

    log = logging.getLogger("claimant")
    level = logging.getLevelNamesMapping()[event.level.upper()]
    if log.isEnabledFor(level):
        name = "" if not event.name or event.text.startswith(event.name) else f"{shown(event.name)}: "
        fields = {"kind": event.kind, "name": event.name, **event.fields}
        log.log(
            level, "%s%s [%s]", name, event.text, event.kind, extra={"claimant": fields}, exc_info=event.error
        )
