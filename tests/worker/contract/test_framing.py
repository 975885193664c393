"""Messages between processes that save: whole or not at all, also to one that dies of them."""

import os
import socket
import threading

import pytest

from resumable_training.contract.framing import Inbox, send


class TakenAtOnce(socket.socket):
    """The other end takes what is sent, and is gone, before this one comes to do anything else."""

    def __init__(self, descriptor: int, other: socket.socket) -> None:
        super().__init__(fileno=descriptor)
        self._other, self.taken = other, Inbox(other)

    def _take(self, sent: int) -> int:
        self.taken.read()
        self._other.close()
        return sent

    def send(self, *arguments: object) -> int:
        return self._take(super().send(*arguments))  # type: ignore[arg-type]

    def sendmsg(self, *arguments: object) -> int:
        return self._take(super().sendmsg(*arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("with_descriptor", [False, True])
def test_who_dies_of_a_message_has_got_it(with_descriptor: bool) -> None:
    """No error: it would be sent again, to another one, and done twice."""
    ours, theirs = socket.socketpair()
    with TakenAtOnce(ours.detach(), theirs) as to:
        send(to, {"kind": "save"}, [to.fileno()] if with_descriptor else [])
        assert to.taken.receive() == {"kind": "save"}
        for descriptor in to.taken.descriptors:
            os.close(descriptor)


def test_one_that_is_gone_gets_nothing() -> None:
    """And that is said."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(OSError, match="Broken pipe"):
        send(ours, {"kind": "save"})


@pytest.mark.parametrize("said", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 4_000, b'{"":' * 1_010])
def test_what_is_no_object_is_one_kind_of_error(said: bytes) -> None:
    """Whoever sent it, and however deep it is."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(len(said).to_bytes(4, "big") + said)
        with pytest.raises(ValueError):
            Inbox(theirs).receive()


def test_a_message_that_does_not_fit_at_once() -> None:
    """Its rest follows while the other end reads, and an end in its middle is an error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        inbox, text = Inbox(theirs), "x" * 1_000_000
        reader = threading.Thread(target=lambda: found.append(inbox.receive()))
        found: list[object] = []
        reader.start()
        send(ours, {"text": text})
        reader.join()
        assert found == [{"text": text}]
