"""``python -m dashboard.cli``: the same as ``gapscope``."""

import sys

from dashboard.cli import main

if __name__ == "__main__":
    sys.exit(main())
