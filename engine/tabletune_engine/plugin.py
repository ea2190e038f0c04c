"""The entry point: vLLM calls `register` in each of its processes, before it makes anything.

Without `TABLETUNE_SOCKET` nothing happens. With it, no failure here may reach vLLM.
"""

from __future__ import annotations

import importlib
import logging
import os

logger = logging.getLogger(__name__)

SOCKET_VARIABLE = "TABLETUNE_SOCKET"


def register() -> None:
    """Hold on to vLLM in this process, if the environment asks for it."""
    socket_path = os.environ.get(SOCKET_VARIABLE)
    if not socket_path:
        return
    try:
        # Imported only when wanted: without the variable, an engine pays for nothing.
        importlib.import_module("tabletune_engine.hooks").install(socket_path)
    except Exception:
        logger.exception("TableTune leaves this engine as it is")
