"""Entry point of the learner process."""

import sys

from aurora_core.learner.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
