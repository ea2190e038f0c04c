"""The version that the stand-in plays; REPLAY_VERSION plays another one."""

import os

__version__ = os.environ.get("REPLAY_VERSION", "0.32.0")
__version_tuple__ = tuple(int(part) for part in __version__.split(".")[:3])

HAS_TABLES = __version_tuple__ >= (0, 24)
V2_IGNORES_TABLES = (0, 29) <= __version_tuple__ < (0, 32)
