"""HMAC-SHA256 signatures of agent calls. No clocks: replay is stopped by boot id and counter.

A request is signed over (method, path, body digest, boot id of the agent, counter). The agent accepts a
counter only once and only above the highest it has accepted; a new boot id makes all older signatures
useless. Replies and stream lines are signed over the counter of the request that they answer.
"""

from __future__ import annotations

import hashlib
import hmac

HEADER_KEY_ID = "Resumable-Key-Id"
HEADER_BOOT_ID = "Resumable-Boot-Id"
HEADER_COUNTER = "Resumable-Counter"
HEADER_SIGNATURE = "Resumable-Signature"


def derive_job_key(master: bytes, job_uid: str) -> bytes:
    """Key of one job from the operator's master key (HKDF-style expand step with one block)."""
    return hmac.new(master, b"resumable-training/job/" + job_uid.encode(), hashlib.sha256).digest()


def key_id(key: bytes) -> str:
    """Public name of a key: says which key signed without telling the key."""
    return hashlib.sha256(b"resumable-training/key-id/" + key).hexdigest()[:16]


def _mac(key: bytes, *parts: bytes) -> str:
    message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.digest(key, message, "sha256").hex()  # several times as fast as an object of hmac


def sign_request(key: bytes, method: str, path: str, body: bytes, boot_id: str, counter: int) -> str:
    """Signature of a request; ``path`` includes the query string."""
    digest = hashlib.sha256(body).digest()
    return _mac(
        key, b"request", method.upper().encode(), path.encode(), digest, boot_id.encode(), b"%d" % counter
    )


def sign_reply(key: bytes, boot_id: str, counter: int, status: int, body: bytes) -> str:
    """Signature of the reply to the request with that counter."""
    return _mac(
        key, b"reply", boot_id.encode(), b"%d" % counter, b"%d" % status, hashlib.sha256(body).digest()
    )


def sign_line(key: bytes, boot_id: str, counter: int, index: int, line: bytes) -> str:
    """Signature of line ``index`` (from 0) of the stream that answers the request with that counter."""
    return _mac(key, b"line", boot_id.encode(), b"%d" % counter, b"%d" % index, line)


def signatures_equal(left: str, right: str) -> bool:
    """Constant-time comparison; False for anything that is not ASCII."""
    try:
        return hmac.compare_digest(left.encode("ascii"), right.encode("ascii"))
    except UnicodeEncodeError:
        return False
