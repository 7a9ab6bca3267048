"""Events as log records: logger "claimant", one line each, the event's fields under `record.claimant`."""

from __future__ import annotations

import logging

from claimant._model.events import Event
from claimant._model.names import shown

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_log = logging.getLogger("claimant")


def log_event(event: Event) -> None:
    """Log one event."""
    level = LEVELS[event.level]
    if _log.isEnabledFor(level):
        name = f"{shown(event.name)}: " if event.name else ""
        fields = {"kind": event.kind, "name": event.name, **event.fields}
        _log.log(level, "%s%s [%s]", name, event.text, event.kind, extra={"claimant": fields})
