"""The arithmetic of TableTune: pure functions on plain data, standard library only.

No Kubernetes, no HTTP, no vLLM here; the operator, the tuner, the sidecar and the command line all call these functions,
so that a table explained on a laptop is the table that runs in a replica.
"""

__version__ = "0.1.0"
