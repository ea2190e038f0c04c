"""Loads general plugins the way vLLM does: every entry point of the group, once a process; a broken one is logged and skipped."""

import logging
import os
from importlib.metadata import entry_points

DEFAULT_PLUGINS_GROUP = "vllm.general_plugins"

logger = logging.getLogger(__name__)
plugins_loaded = False


def load_general_plugins() -> None:
    global plugins_loaded  # noqa: PLW0603 (as in vLLM: a process loads them once)
    if plugins_loaded:
        return
    plugins_loaded = True
    named = os.environ.get("VLLM_PLUGINS")
    allowed = None if named is None else named.split(",")
    functions = []
    for plugin in entry_points(group=DEFAULT_PLUGINS_GROUP):
        if allowed is None or plugin.name in allowed:
            try:
                functions.append(plugin.load())
            except Exception:
                logger.exception("Failed to load plugin %s", plugin.name)
    for function in functions:
        function()
