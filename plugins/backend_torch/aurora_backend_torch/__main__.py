"""`python -m aurora_backend_torch PLAN.json`: one engine process."""

import logging
import os
import sys

from aurora_backend_torch.process import main

if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    logging.shutdown()
    sys.stderr.flush()
    # Everything is closed by now; taking the interpreter and torch apart would take seconds more.
    os._exit(status)
