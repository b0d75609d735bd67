"""The command as a process of its own, which tests watch, interrupt and kill."""

import subprocess
import sys
import time

import psutil

# Children of a shell's background job ignore interrupts until they say otherwise.
CALL = """\
import signal, sys
from mvnb.cli import main
{}
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main({!r}))
"""


def start(book, *arguments, before=""):
    """The command in a process group of its own, in the folder of a book; ``before`` it these statements."""
    script = book.parent / "call.py"
    script.write_text(CALL.format(before, list(arguments)))
    return subprocess.Popen(
        [sys.executable, script], cwd=book, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def until(condition, seconds=60):
    """Wait for what another process is to do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def kernels(pid):
    """The kernels below a process."""
    return [child for child in psutil.Process(pid).children(recursive=True) if "ipykernel" in command_line(child)]


def command_line(process):
    try:
        return str(process.cmdline())
    except psutil.Error:  # gone, or about to go
        return ""
