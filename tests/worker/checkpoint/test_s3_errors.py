"""What a server's refusal is taken for, and what the user is told."""

import pytest

from resumable_training.checkpoint.s3_errors import MISSING, REFUSED, TROUBLE, understand
from resumable_training.checkpoint.s3_upload import LEAST_PART, part_bytes


def answer(method: str, status: str, code: str = "", message: str = "") -> str:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ""
    return (
        f"Error performing {method} https://s3.example/b/job/a in 1ms - Server returned non-2xx status code:"
        f" {status}: {body}\n\nDebug source:\nRetryError {{ ... }}"
    )


@pytest.mark.parametrize(
    ("name", "text", "kind", "words"),
    [
        ("FileNotFoundError", answer("HEAD", "404 Not Found"), MISSING, ""),
        ("FileNotFoundError", answer("GET", "404 Not Found", "NoSuchKey"), MISSING, ""),
        (
            "FileNotFoundError",
            answer("GET", "404 Not Found", "NoSuchBucket", "No."),
            REFUSED,
            "make the bucket",
        ),
        ("PermissionError", answer("PUT", "403 Forbidden", "AccessDenied"), REFUSED, "grant s3:ListBucket"),
        ("GenericError", answer("PUT", "403 Forbidden", "RequestTimeTooSkewed"), REFUSED, "clock"),
        ("GenericError", answer("PUT", "400 Bad Request", "ExpiredToken", "Old."), REFUSED, "renew them"),
        ("GenericError", answer("HEAD", "403 Forbidden"), REFUSED, "check the credentials"),
        ("GenericError", answer("GET", "301 Moved"), REFUSED, "AWS_REGION"),
        ("GenericError", "Received redirect without LOCATION, this", REFUSED, "AWS_REGION"),
        (
            "GenericError",
            answer("PUT", "503 Slow Down", "SlowDown", "Less."),
            TROUBLE,
            "SlowDown (503): Less.",
        ),
        ("GenericError", answer("PUT", "400 Bad Request", "IncompleteBody"), TROUBLE, "IncompleteBody (400)"),
        ("GenericError", answer("GET", "500 Oops"), TROUBLE, "GET https://s3.example"),
        ("GenericError", "PUT http://169.254.169.254/latest/api/token timed out", TROUBLE, "no credentials"),
        (
            "GenericError",
            'Error performing GET http://h:1/b in 1ms - HTTP error\n Os { message: "Connection refused" }',
            TROUBLE,
            "GET http://h:1: Connection refused",
        ),
        ("OSError", "", TROUBLE, "no reason given"),
    ],
)
def test_kinds_and_words(name: str, text: str, kind: str, words: str) -> None:
    """Missing, refused with the fix, or trouble that may pass; in one line."""
    problem = understand(name, text)
    assert problem.kind == kind
    assert words in problem.text
    assert "\n" not in problem.text


@pytest.mark.parametrize("size", [0, 1, LEAST_PART, 80 * 10**9, 10**12, 5 * 1024**4])
def test_parts_are_sized_from_the_object(size: int) -> None:
    """No object takes more than the 10,000 parts that S3 allows, and small ones are not too small."""
    each = part_bytes(size)
    assert each >= LEAST_PART
    assert each % (1024 * 1024) == 0
    assert size / each <= 9_500
    assert each == LEAST_PART or size / each > 8_000
