"""`python -m offgen`."""

import sys

from offgen.cli import main

if __name__ == "__main__":
    sys.exit(main())
