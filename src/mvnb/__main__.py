"""Entry point of ``python -m mvnb``, which runs the command ``mvnb``."""

import sys

if __name__ == "__main__":
    from mvnb.cli import main

    sys.exit(main())
