"""What a file may ask for and must not get."""

import os


class Command:
    """An object whose unpickling runs a command, which leaves the file ``executed``."""

    def __reduce__(self):
        return os.system, ("touch executed",)
