"""The sidecar's own process with shorter pauses, for tests: `PROOF_SECONDS FLAG...`. What it does after each of them is the same."""

import sys

from tabletune_sidecar import main

if __name__ == "__main__":
    main.TURN_SECONDS = 0.2
    main.PROOF_AFTER_SECONDS = float(sys.argv.pop(1))
    sys.exit(main.main())
