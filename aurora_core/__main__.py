"""`python -m aurora_core` is the command `aurora`."""

import sys

from aurora_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
