"""Between the agent and a rank: a few lines that run in the new process before the user's command.

Run as ``python -I -S -c <this text> <parent pid> <directory> <command...>``; alone, without this package, so
that a rank starts in milliseconds. What ``preexec_fn`` would do in a forked copy of a threaded process (and
may hang on its locks) is done here in a fresh one.
"""

import errno
import os
import signal
import sys

USER_ERROR = 81  # contract.exitcodes.USER_ERROR: nothing would be different next time
NO_SUCH_PROGRAM = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.E2BIG)


def main(parent: int, directory: str, command: "list[str]") -> None:
    """Own session, death with the parent, default signals; then become the command."""
    os.setsid()
    die_with_parent(parent)
    # Python ignores these at start, and an ignored signal stays ignored through exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        if directory:
            os.chdir(directory)
        os.execvp(command[0], command)  # noqa: S606 - the user's own argv, no shell wanted
    except OSError as error:
        what = directory if error.filename == directory else command[0]
        os.write(2, ("cannot start the rank: %s: %s\n" % (what, error.strerror)).encode())
        os._exit(USER_ERROR if error.errno in NO_SUCH_PROGRAM else 127)


def die_with_parent(parent: int) -> None:
    """SIGKILL when the thread that started us ends. One that ended before this sends no signal."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(137)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
