"""The command ``mvnb`` as ``python -m mvnb``."""

import sys

if __name__ == "__main__":
    from mvnb.cli import main

    sys.exit(main())
