"""Loads torch's native libraries while Python imports what needs none of them: used by ``preload_hook`` only.

A fifth of what ``import torch`` takes is the dynamic linker's and the libraries' own start, in which the
interpreter stands still. Here a thread does that, at the very place where torch would, with the flags that it
would have used and in the same scope, and has ended before anything is forked. The libraries' initialisers
run without the interpreter's lock: they use nothing of Python (LD_DEBUG=bindings shows no call, torch 2.14),
nor could they, in programs that are linked with them and start an interpreter later.

Stand-alone like the hook: runs in the user's interpreter, of any version from 3.9, without this package.
"""

import ctypes
import os
import sys
import threading
from typing import Any, Callable, Iterable, List, Optional

EXTENSION = "torch._C"
LIBRARY = os.path.join("lib", "libtorch_python.so")  # all that the extension itself links


class Beside:
    """A finder that finds nothing: asked for torch's extension, it has the libraries loaded beside imports.

    By then torch has loaded what must come before, such as the CUDA libraries that it prefers.

    Args:
        first: modules with small libraries of their own, which can't be loaded meanwhile.
        beside: what is imported meanwhile; all of it is wanted anyway.
        load: imports a module, and returns even if that fails.
    """

    def __init__(self, first: List[str], beside: List[str], load: Callable[[str], Any]) -> None:
        self._first, self._beside, self._load = first, beside, load

    def find_spec(self, name: str, path: Optional[Iterable[str]] = None, target: Any = None) -> None:
        """None, always: who comes next in ``sys.meta_path`` finds it."""
        if name != EXTENSION or self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        libraries = [os.path.join(directory, LIBRARY) for directory in path or ()]
        if not libraries or not os.path.exists(libraries[0]) or len(os.sched_getaffinity(0)) < 2:
            return
        for module in self._first:
            self._load(module)
        thread = threading.Thread(target=link, args=(libraries[0],), name="resumable-preload")
        thread.start()
        for module in self._beside:
            self._load(module)
        thread.join()


def link(library: str) -> None:
    """``dlopen``; if it fails torch will try, and say why. A foreign call: others may run meanwhile."""
    ctypes.CDLL(None).dlopen(os.fsencode(library), sys.getdlopenflags())
