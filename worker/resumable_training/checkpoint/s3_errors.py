"""What an S3 server's refusal means, from the words of the client. Pure.

Three kinds: the name does not exist, the server refuses us (credentials, rights, region, bucket: trying again
changes nothing until somebody mends it), or it has trouble (anything else: try again, for a while).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MISSING, REFUSED, TROUBLE = "missing", "refused", "trouble"

_SECRET = "the Secret of checkpoint.s3.secretName"  # noqa: S105  no secret itself
_KEYS = f"check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (in a cluster: {_SECRET})"
_REGION = f"set AWS_REGION to the bucket's region (in a cluster: in {_SECRET})"
_NEW = f"renew them (in a cluster: in {_SECRET}, which new pods read)"
_RIGHTS = "s3:ListBucket, s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload"
_FIXES = {
    "AccessDenied": f"grant {_RIGHTS}",
    "InvalidAccessKeyId": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "ExpiredToken": f"the credentials have expired: {_NEW}",
    "ExpiredTokenException": f"the credentials have expired: {_NEW}",
    "TokenRefreshRequired": f"the credentials have expired: {_NEW}",
    "InvalidToken": f"AWS_SESSION_TOKEN is not valid: {_NEW}",
    "RequestTimeTooSkewed": "set this machine's clock: it is too far from the server's",
    "RequestExpired": "set this machine's clock: it is too far from the server's",
    "NoSuchBucket": "make the bucket, or mend checkpoint.s3.bucket (and .endpoint, if it is not AWS)",
    "InvalidBucketName": "mend checkpoint.s3.bucket",
    "AllAccessDisabled": "the bucket's owner has disabled it",
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "IllegalLocationConstraintException": _REGION,
}
_NO_FIX = "check the credentials, and that they may read, write, list and delete in the bucket"
_MISSING = {"NotFoundError", "FileNotFoundError"}
_DENIED = {"PermissionDeniedError", "UnauthenticatedError", "PermissionError"}
_STATUS = re.compile(r"status code: (\d{3})|response status: (\d{3})|\((\d{3}) [A-Z]")
_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>")
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_METADATA = re.compile(r"latest/api/token|meta-data/iam|security-credentials")
_REQUEST = re.compile(r"Error performing (\w+) (\w+://[^/\s]+)")
_CAUSE = re.compile(
    r'message: "([^"]+)"|"(dns error[^"]*|operation timed out|[^"]*invalid peer certificate[^"]*)"'
)
_LONGEST = 300


@dataclass(frozen=True)
class Problem:
    """Why a request failed."""

    kind: str
    code: str = ""  # S3's own, such as SlowDown
    status: int = 0  # of HTTP; 0: there was no answer
    text: str = ""


def understand(name: str, text: str) -> Problem:
    """``name`` of the client's exception class, and its text with the server's answer in it."""
    code = _first(_CODE, text)
    status = int(_first(_STATUS, text) or 0)
    said = _said(text, code, status)
    if _METADATA.search(text):  # may pass, where the machine has a role
        return Problem(TROUBLE, code, status, f"no credentials were found: {_KEYS}, or give the pod a role")
    if code == "NoSuchKey" or (name in _MISSING and code not in _FIXES):
        return Problem(MISSING, code, status, said)
    if code in _FIXES:
        return Problem(REFUSED, code, status, f"{said}; {_FIXES[code]}")
    if status in (401, 403) or name in _DENIED:
        return Problem(REFUSED, code, status or 403, f"{said}; {_NO_FIX}")
    if "redirect without LOCATION" in text or status in (301, 307):
        return Problem(REFUSED, code, status, f"{said}; {_REGION}")
    return Problem(TROUBLE, code, status, said)


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return next((group for group in match.groups() if group), "") if match else ""


def _said(text: str, code: str, status: int) -> str:
    """The server's own words if there are any, else what the client met, and where."""
    message = _first(_MESSAGE, text).strip()
    if code or message:
        return f"{code} ({status}): {message}".removesuffix(": ").strip()[:_LONGEST]
    first = (text.strip() or "no reason given").splitlines()[0]
    cause = _first(_CAUSE, text) or first.rpartition(" - ")[2].strip(" :")
    request = _REQUEST.search(text)
    return (f"{request[1]} {request[2]}: {cause}" if request else cause)[:_LONGEST]
