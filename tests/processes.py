"""The command as a process of its own, which tests watch, interrupt and kill."""

import subprocess
import sys
import time

import psutil


def start(book, *arguments):
    """The command in a process group of its own, in the folder of a book."""
    call = f"import sys; from mvnb.cli import main\nif __name__ == '__main__': sys.exit(main({list(arguments)!r}))"
    script = book.parent / "call.py"
    script.write_text(call)
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
