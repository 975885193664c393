"""Who may command this agent: holders of the job's key, each signature once (``contract.signing``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Mapping, Optional

from resumable_training.agent.http import is_number
from resumable_training.contract import signing

BAD_SIGNATURE = "bad_signature"
UNKNOWN_KEY = "unknown_key"
WRONG_BOOT = "wrong_boot"
STALE_COUNTER = "stale_counter"


@dataclass(frozen=True)
class Caller:
    """Whose request is being answered: the reply is signed with its key, over its counter."""

    key: bytes
    counter: int


class Denied(Exception):
    """Answered as 401. ``caller``: to sign the refusal; None when the key is unknown."""

    def __init__(self, code: str, message: str, caller: Optional[Caller] = None) -> None:
        super().__init__(message)
        self.code = code
        self.caller = caller


def read_keys(path: Path) -> Dict[str, bytes]:
    """Keys by their id; one a line in hexadecimal, the current one first.

    Raises:
        OSError: the file can't be read.
        ValueError: no key in it, or a line that is not hexadecimal.
    """
    keys = [bytes.fromhex(line) for line in path.read_text().split()]
    if not keys:
        raise ValueError("%s holds no key" % path)
    return {signing.key_id(key): key for key in keys}


class Gate:
    """Checks signatures; remembers the highest counter. Keys are read again when an unknown one appears."""

    def __init__(self, key_file: Path, boot_id: str) -> None:
        self.boot_id = boot_id
        self.counter = 0
        self._key_file = key_file
        self._keys = read_keys(key_file)

    def admit(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Caller:
        """The caller of an authentic, new request.

        Raises:
            Denied: it is not.
        """
        key = self._key(headers.get(signing.HEADER_KEY_ID.lower(), ""))
        text = headers.get(signing.HEADER_COUNTER.lower(), "")
        counter = int(text) if is_number(text) and len(text) < 20 else 0
        caller = Caller(key, counter)
        if headers.get(signing.HEADER_BOOT_ID.lower()) != self.boot_id:
            raise Denied(WRONG_BOOT, "signed for another boot of this agent", caller)
        expected = signing.sign_request(key, method, target, body, self.boot_id, counter)
        if not signing.signatures_equal(expected, headers.get(signing.HEADER_SIGNATURE.lower(), "")):
            raise Denied(BAD_SIGNATURE, "the signature does not fit the request", caller)
        if counter <= self.counter:
            raise Denied(STALE_COUNTER, "counter %d; %d was used" % (counter, self.counter), caller)
        self.counter = counter
        return caller

    def _key(self, key_id: str) -> bytes:
        if key_id not in self._keys:
            self._reload()
        if key_id not in self._keys:
            raise Denied(UNKNOWN_KEY, "not a key of this job")
        return self._keys[key_id]

    def _reload(self) -> None:
        """A rotated key appears in the mounted file; one that can't be read now leaves the keys we have."""
        try:
            self._keys = read_keys(self._key_file)
        except (OSError, ValueError) as error:
            raise Denied(UNKNOWN_KEY, "not a key of this job (and %s)" % error) from error
