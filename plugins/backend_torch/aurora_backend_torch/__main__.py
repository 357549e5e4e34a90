"""`python -m aurora_backend_torch PLAN.json`: one engine process."""

import sys

from aurora_backend_torch.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
