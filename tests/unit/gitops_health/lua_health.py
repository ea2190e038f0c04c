"""Argo CD's way to run a health script: Lua 5.1, base and table libraries only; the object is `obj`, the returned table the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lupa import lua51

LEFT = ("_G", "assert", "error", "ipairs", "next", "pairs", "select", "table", "tonumber", "tostring", "type", "unpack")
"""What a script finds that is not allowed open libraries; `os` is there too, with a clock only."""


class HealthScript:
    def __init__(self, script: str) -> None:
        self._lua = lua51.LuaRuntime(register_eval=False, register_builtins=False, unpack_returned_tuples=True)
        self._run = self._lua.eval("function(script, env, object) env.obj = object; return setfenv(assert(loadstring(script)), env)() end")
        self._libraries = {name: self._lua.globals()[name] for name in LEFT}
        self._script = script

    def health(self, body: Mapping[str, Any]) -> tuple[str, str]:
        """Status and message."""
        answer = self._run(self._script, self._lua.table_from(self._libraries), self._table(body))
        return str(answer["status"]), str(answer["message"])

    def _table(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._lua.table_from({key: self._table(each) for key, each in value.items() if each is not None})
        if isinstance(value, list | tuple):
            return self._lua.table_from([self._table(each) for each in value])
        return value
