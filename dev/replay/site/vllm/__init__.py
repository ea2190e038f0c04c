"""A small stand-in with vLLM's module names, so that the real engine plugin hooks it unmodified. It is not vLLM."""

from vllm.version import __version__ as __version__
