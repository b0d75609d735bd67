"""A machine elsewhere: the stand-in for a card and products moved in their last place, in every kernel that is started.

``PYTHONSTARTUP=tests/elsewhere.py`` does so; the seed of what moves is ``MVNB_ROUNDING``, as in ``rounding.py``.
"""

import os
import sys

if __name__ == "__main__":  # a kernel's start-up file: to the end of the process
    sys.path.insert(0, os.path.dirname(os.environ["PYTHONSTARTUP"]))
    from card import card
    from rounding import rounding

    sys.path.pop(0)
    _elsewhere = rounding(int(os.environ.get("MVNB_ROUNDING", "0"))), card()  # the name keeps them from being collected
    for _one in _elsewhere:
        _one.__enter__()
