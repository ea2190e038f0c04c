"""What the stand-in needs besides vLLM's own module names: recorded step times, acceptance, faults, command line and HTTP."""

BANNER = "replay stand-in, not vLLM: step times are replayed from a recording, the text is filler"
