"""Errors that give the new names of what was renamed."""

import functools
from collections.abc import Callable


def old_names(module: str, **new: str) -> Callable:
    """Return the ``__getattr__`` of a module with renamed members, which raises ``ImportError`` with the new name."""

    def missing(name: str):
        if name in new:
            raise ImportError(f"{module}.{name} is now {new[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing


def old_arguments(**new: str) -> Callable:
    """Return a decorator for classes with renamed arguments, which raises ``TypeError`` with the new name."""

    def decorate(kind: type) -> type:
        @functools.wraps(kind.__init__)
        def checked(self, *args, **kwargs):
            for name in new.keys() & kwargs.keys():
                raise TypeError(f"{type(self).__name__}: the argument {name} is now {new[name]}")
            create(self, *args, **kwargs)

        create, kind.__init__ = kind.__init__, checked
        return kind

    return decorate
