"""A signature covers everything that matters, and nothing else makes it valid."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from resumable_training.contract import signing

KEY = b"k" * 32
REQUEST = (KEY, "PUT", "/v1/assignment", b"body", "boot", 7)
CHANGED_REQUESTS = [
    (b"x" * 32, *REQUEST[1:]),
    (KEY, "POST", *REQUEST[2:]),
    (*REQUEST[:2], "/v1/assignment?x=1", *REQUEST[3:]),
    (*REQUEST[:3], b"bodY", *REQUEST[4:]),
    (*REQUEST[:4], "boot2", REQUEST[5]),
    (*REQUEST[:5], 8),
]


def test_request_signature_covers_every_part() -> None:
    """Changing key, method, path, body, boot or counter changes the signature."""
    signatures = [signing.sign_request(*parts) for parts in (REQUEST, *CHANGED_REQUESTS)]
    assert len(set(signatures)) == len(signatures)


def test_request_signature_ignores_the_case_of_the_method() -> None:
    """HTTP clients differ in how they spell it."""
    assert signing.sign_request(KEY, "put", *REQUEST[2:]) == signing.sign_request(*REQUEST)


def test_reply_and_line_signatures_cover_every_part() -> None:
    """Boot, counter, status or index, and content."""
    replies = [
        signing.sign_reply(KEY, boot, counter, status, body)
        for boot, counter, status, body in itertools.product("ab", (1, 2), (200, 409), (b"x", b"y"))
    ]
    lines = [
        signing.sign_line(KEY, boot, counter, index, line)
        for boot, counter, index, line in itertools.product("ab", (1, 2), (0, 1), (b"x", b"y"))
    ]
    assert len({*replies, *lines}) == len(replies) + len(lines)


@given(st.text(), st.text(), st.text(), st.text())
def test_parts_do_not_run_into_one_another(path: str, boot: str, other_path: str, other_boot: str) -> None:
    """Moving a character from one part to the next is another message."""
    one = signing.sign_request(KEY, "GET", path, b"", boot, 1)
    other = signing.sign_request(KEY, "GET", other_path, b"", other_boot, 1)
    assert (one == other) == ((path, boot) == (other_path, other_boot))


def test_job_keys_differ_and_their_ids_do_not_tell_them() -> None:
    """Each job has a key of its own; the id is public."""
    one, two = (signing.derive_job_key(b"master", uid) for uid in ("uid-1", "uid-2"))
    assert one != two
    assert signing.key_id(one) != signing.key_id(two)
    assert one.hex() not in signing.key_id(one)
    assert signing.derive_job_key(b"other", "uid-1") != one


def test_comparison() -> None:
    """Equal only when equal; what is not ASCII is never equal and no error."""
    assert signing.signatures_equal("ab", "ab")
    assert not signing.signatures_equal("ab", "ac")
    assert not signing.signatures_equal("ä", "ä")
