"""A real S3 server for tests: SeaweedFS, in one process on 127.0.0.1, with one user who has a bucket.

It signs and checks signatures, refuses a second create-only PUT, and takes multipart uploads, as AWS does.
"""

from __future__ import annotations

import http.client
import json
import random
import secrets
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.store import S3Store

from bed.binaries import binary
from bed.processes import Component, Server, wait_until

PROGRAMS = ("weed",)
HOST = "127.0.0.1"
REGION = "us-east-1"
BUCKET = "checkpoints"
PORTS = range(20_000, 30_000)
START_SECONDS = 90.0
_PORTS = ("master", "master_grpc", "volume", "volume_grpc", "filer", "filer_grpc", "s3", "s3_grpc")


@dataclass
class S3Server(Server):
    """A running server. As a context it is stopped at the end; its data goes with `directory`."""

    ports: dict[str, int]
    access_key: str
    secret_key: str
    bucket: str = BUCKET

    @classmethod
    def start(cls, directory: Path) -> S3Server:
        """Start it and make the bucket; from the main thread only. TimeoutError if it doesn't answer."""
        data = directory / "data"
        data.mkdir(parents=True)
        ports = _free_ports()
        access_key, secret_key = secrets.token_hex(8), secrets.token_hex(16)
        config = directory / "s3.json"
        config.write_text(json.dumps(_identities(access_key, secret_key)))
        argv = [binary("weed"), *_arguments(data, config, ports)]
        server = cls(Component.start(argv, directory / "weed.log"), ports, access_key, secret_key)
        try:
            wait_until(server._answers, START_SECONDS, f"the S3 server; see {directory / 'weed.log'}")
            wait_until(server._made_bucket, START_SECONDS, "the bucket", interval=0.1)
            server._warm_up()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.ports['s3']}"

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """What an S3 client reads; `endpoint` for one in between."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
        }

    def _answers(self) -> bool:
        self.component.require_running()
        return _status("GET", self.ports["s3"], "/") is not None

    def _made_bucket(self) -> bool:
        """A bucket is a directory of the filer, which is up a little later than the gateway."""
        self.component.require_running()
        return _status("POST", self.ports["filer"], f"/buckets/{self.bucket}/") in (201, 409)

    def _warm_up(self) -> None:
        """The first object makes the server allocate volumes, which takes seconds: not in a test's time."""
        store = S3Store(
            self.bucket,
            endpoint=self.endpoint,
            region=REGION,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            client_options={"allow_http": True},
        )
        obstore.put(store, "first", b"first")


def _status(method: str, port: int, path: str) -> int | None:
    """Of the answer; None when nobody answers."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _identities(access_key: str, secret_key: str) -> dict[str, object]:
    """One user; nobody comes in without keys."""
    actions = [f"{action}:{BUCKET}" for action in ("Read", "Write", "List")]
    credentials = [{"accessKey": access_key, "secretKey": secret_key}]
    return {"identities": [{"name": "trainer", "credentials": credentials, "actions": actions}]}


def _arguments(data: Path, config: Path, ports: dict[str, int]) -> list[str]:
    """Quiet, small, on the loopback alone; nothing is reported to anybody."""
    named = {
        name.replace("_grpc", ".port.grpc") if "_" in name else f"{name}.port": port
        for name, port in ports.items()
    }
    return [
        "-logtostderr",
        "server",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        f"-dir={data}",
        *(f"-{flag}={port}" for flag, port in named.items()),
        "-s3",
        f"-s3.config={config}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        f"-s3.localSocket={data / 's3.sock'}",
        f"-filer.localSocket={data / 'filer.sock'}",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=1024",
        "-master.electionTimeout=1s",
        "-volume.max=50",
        "-volume.minFreeSpace=100MiB",
        "-volume.preStopSeconds=0",
    ]


def _free_ports() -> dict[str, int]:
    """Ports that nobody listens on now, below those that the kernel gives to clients."""
    with ExitStack() as held:
        found: list[int] = []
        for port in random.sample(PORTS, len(PORTS)):
            try:
                held.enter_context(socket.create_server((HOST, port)))
            except OSError:
                continue
            found.append(port)
            if len(found) == len(_PORTS):
                return dict(zip(_PORTS, found, strict=True))
    raise RuntimeError(f"no {len(_PORTS)} free ports between {PORTS.start} and {PORTS.stop}")
