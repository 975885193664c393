"""Run both built images as pods run them, and say what is wrong: ``make images-check``.

With docker or podman; no cluster. The operator's Deployment comes from deploy/operator.yaml, the worker's pod
is the one that the operator would make of deploy/examples/gpt-pvc.yaml: user, capabilities, volumes and
command lines are theirs, the worker's root made read-only too. In turn:

- what the images say about themselves, and what is in them (image_faults.py);
- the operator starts; ``rtj`` starts in both;
- the init container copies the agent, also as the random user of an OpenShift cluster;
- the agent answers as PID 1 of the worker's container, and ends when it is told to;
- the worker's image trains: two ranks, a checkpoint, under a read-only root.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from image_build import ROOT, TARGETS, NoTool, find_tool, image_name, version
from image_faults import MODULES, of_configuration, of_facts, pins_of
from image_pods import Pod, confinement, run_command

from resumable_operator.cli.reader_pod import RTJ
from resumable_operator.decide.observation import Job
from resumable_operator.manifests import PodSettings, key_secret, pod
from resumable_operator.manifests_agent import AGENT_FILE
from resumable_operator.manifests_storage import AGENT_VOLUME, KEY_VOLUME
from resumable_operator.model import JobStatus, parse_spec
from resumable_training.contract.labels import AGENT_PORT_NAME

RUN_SECONDS = 300
AGENT_SECONDS = 60.0
KEY_ID = "0123456789abcdef"
OTHER_USER = {"runAsUser": 1000680000, "runAsGroup": 0}  # as OpenShift chooses: no name, and root's group
LOCAL = {"status.podIP": "127.0.0.1", "metadata.namespace": "default"}
ENDED_BY_SIGTERM = 143
TRAIN = ("run", "--workers", "2", "-m", "resumable_training.examples.gpt", "--", "--steps", "10")
_ASK = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:%d/healthz', timeout=5)"
Raw = dict[str, Any]


class Fault(Exception):
    """What was tried did not work; the message has the tool's words."""


@dataclass(frozen=True)
class Checker:
    """The images, the tool that runs them, and a folder for what stands in for volumes."""

    tool: str
    registry: str
    folder: Path

    def image(self, target: str) -> str:
        return image_name(target, self.registry)

    # ---- one image -------------------------------------------------------------------------------

    def described(self, target: str) -> Iterator[str]:
        """Faults of its configuration, and of what is in it."""
        (found,) = json.loads(self._do(self.tool, "image", "inspect", self.image(target)))
        say(f"{target}: {found['Size'] / 1e6:,.0f} MB")
        yield from of_configuration(target, version(), found["Config"])
        probe = Path(__file__).with_name("image_probe.py").read_text()
        options = ("--rm", "--interactive", "--network", "none", "--read-only", "--user", "0:0")
        inside = ("--entrypoint", "python", self.image(target), "-", *MODULES[target])
        facts = json.loads(self._do(self.tool, "run", *options, *inside, stdin=probe).splitlines()[-1])
        packages = len(facts["distributions"])
        say(f"{target}: Python {facts['python']}, {packages} packages, {facts['pip_check']}")
        pins = pins_of((ROOT / "constraints.txt").read_text())
        yield from of_facts(target, version(), facts, pins, dev_packages())

    def operator_starts(self) -> None:
        """By the Deployment's command line, with its user and read-only root."""
        spec, container = deployment(self.image("operator"))
        made = Pod(spec, self._volumes(spec), LOCAL)
        self._do(*run_command(self.tool, made, container, "--rm", more=("--help",)))

    def rtj_starts(self, target: str) -> None:
        """As in the pods that read checkpoints, which have either image."""
        spec, container = deployment(self.image(target))
        options = confinement(self.tool, spec["securityContext"], container["securityContext"])
        command, *arguments = RTJ
        inside = ("--entrypoint", command, self.image(target), *arguments, "checkpoints", "--help")
        self._do(self.tool, "run", "--rm", "--network", "none", *options, *inside)

    # ---- a worker's pod --------------------------------------------------------------------------

    def agent_is_copied(self, user: Raw | None = None) -> None:
        """By the init container, into the volume that the worker mounts."""
        made = self._pod()
        init = made.spec["initContainers"][-1]
        init = {**init, "securityContext": {**init["securityContext"], **(user or {})}}
        bundle = made.volumes[AGENT_VOLUME] / Path(AGENT_FILE).name
        bundle.unlink(missing_ok=True)
        self._do(*run_command(self.tool, made, init, "--rm"))
        if not bundle.is_file():
            raise Fault(f"the init container left no {AGENT_FILE}")

    def agent_answers(self) -> None:
        """As PID 1 of the worker's container; SIGTERM ends it, as there are no ranks to ask."""
        made = self._pod()
        (container,) = made.spec["containers"]
        ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
        with self._running(made, container) as name:
            self._await_answer(name, ports[AGENT_PORT_NAME])
            self._do(self.tool, "stop", "--time", "30", name)
            (state,) = json.loads(self._do(self.tool, "container", "inspect", name))
            if state["State"]["ExitCode"] != ENDED_BY_SIGTERM:
                raise Fault(f"the agent ended with {state['State']['ExitCode']}\n{self._log(name)}")

    def worker_trains(self) -> None:
        """``rtj run`` in the worker's image: torch, gloo, agent and checkpoints under a read-only root."""
        made = self._pod()
        (container,) = made.spec["containers"]
        home = self.folder / "home"
        home.mkdir()
        home.chmod(0o777)
        options = confinement(self.tool, made.spec["securityContext"], container["securityContext"])
        options += ["--tmpfs", "/tmp:rw,mode=1777", "--volume", f"{home}:/runs:z", "--workdir", "/runs"]  # noqa: S108
        command, *arguments = RTJ
        inside = ("--entrypoint", command, self.image("worker"), *arguments, *TRAIN)
        options += ["--rm", "--network", "none", "--env", "HOME=/runs"]
        said = self._do(self.tool, "run", *options, *inside)
        if not list(home.glob("runs/*/checkpoints/step-00000010*")):
            raise Fault(f"no checkpoint of the last step\n{said[-3000:]}")

    # ---- how -------------------------------------------------------------------------------------

    def clean_up(self) -> None:
        """Remove what containers wrote: it belongs to their users, whom only the tool's root may overrule."""
        options = ("--rm", "--network", "none", "--user", "0:0", "--volume", f"{self.folder}:/folder:z")
        inside = ("--entrypoint", "find", self.image("operator"), "/folder", "-mindepth", "1", "-delete")
        subprocess.run([self.tool, "run", *options, *inside], capture_output=True, check=False)

    def _pod(self) -> Pod:
        """The worker's pod, as the operator makes it of the example, with the images that are checked."""
        spec = worker_pod(self.image("operator"), self.image("worker"))
        made = Pod(spec, self._volumes(spec), LOCAL)
        secret = key_secret(example(self.image("worker")), KEY_ID, bytes(32))
        for name, value in secret["data"].items():
            (made.volumes[KEY_VOLUME] / name).write_bytes(base64.b64decode(value))
        return made

    def _volumes(self, spec: Raw) -> dict[str, Path]:
        """A folder for each; everybody may write there, as in a kubelet's emptyDir."""
        found = {}
        for volume in spec.get("volumes") or ():
            place = found[volume["name"]] = self.folder / volume["name"]
            place.mkdir(exist_ok=True)
            place.chmod(0o777)
        return found

    @contextmanager
    def _running(self, made: Pod, container: Raw) -> Iterator[str]:
        name = f"images-check-{uuid.uuid4().hex[:12]}"
        self._do(*run_command(self.tool, made, container, "--detach", "--name", name))
        try:
            yield name
        finally:
            subprocess.run([self.tool, "rm", "--force", name], capture_output=True, check=False)

    def _await_answer(self, name: str, port: int) -> None:
        asked = [self.tool, "exec", name, "python3", "-c", _ASK % port]
        end = time.monotonic() + AGENT_SECONDS
        while (answer := subprocess.run(asked, capture_output=True, text=True, check=False)).returncode:
            if time.monotonic() > end:
                words = f"{answer.stderr[-1000:]}\n{self._log(name)}"
                raise Fault(f"the agent did not answer on port {port}\n{words}")
            time.sleep(0.5)

    def _log(self, name: str) -> str:
        result = subprocess.run([self.tool, "logs", name], capture_output=True, text=True, check=False)
        return (result.stdout + result.stderr)[-3000:]

    def _do(self, *command: str, stdin: str | None = None) -> str:
        """What it prints.

        Raises:
            Fault: it fails, or takes more than RUN_SECONDS.
        """
        try:
            result = subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Fault(f"not done after {RUN_SECONDS} s: {' '.join(command)}") from error
        if result.returncode:
            words = (result.stdout + result.stderr)[-3000:]
            raise Fault(f"`{' '.join(command)}` ended with {result.returncode}\n{words}")
        return result.stdout


# ---- what is rendered --------------------------------------------------------------------------------


def deployment(image: str) -> tuple[Raw, Raw]:
    """Pod and container of the operator, from the plain manifests, with that image."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "operator.yaml").read_text())
    (spec,) = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment"]
    (container,) = spec["containers"]
    return spec, {**container, "image": image}


def example(image: str) -> Job:
    """The first example, with that image, and a root that is read-only."""
    _, body = yaml.safe_load_all((ROOT / "deploy" / "examples" / "gpt-pvc.yaml").read_text())
    (worker,) = body["spec"]["template"]["spec"]["containers"]
    worker["image"] = image
    worker["securityContext"]["readOnlyRootFilesystem"] = True
    return Job("default", "gpt", "uid", 1, parse_spec(body["spec"]), JobStatus())


def worker_pod(operator_image: str, worker_image: str) -> Raw:
    """The spec of a pod that the operator makes."""
    settings = PodSettings(agent_image=operator_image)
    spec: Raw = pod(example(worker_image), "gpt-0-1", 0, 1, KEY_ID, settings)["spec"]
    return spec


def dev_packages() -> frozenset[str]:
    """Of the extra ``dev``."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return frozenset(name.split("=")[0].split(">")[0].strip().lower() for name in extras["dev"])


# ---- running -----------------------------------------------------------------------------------------


def say(words: str) -> None:
    print(f"images: {words}", file=sys.stderr, flush=True)


def check(checker: Checker) -> int:
    """All of it; how many faults were found."""
    faults = 0
    for target in TARGETS:
        for fault in checker.described(target):
            faults += 1
            say(f"FAULT {target}: {fault}")
    steps = (
        ("the operator starts", checker.operator_starts),
        ("rtj starts in the operator's image", lambda: checker.rtj_starts("operator")),
        ("rtj starts in the worker's image", lambda: checker.rtj_starts("worker")),
        ("the agent is copied as another user", lambda: checker.agent_is_copied(OTHER_USER)),
        ("the agent is copied", checker.agent_is_copied),
        ("the agent answers as PID 1 of a worker", checker.agent_answers),
        ("the worker's image trains", checker.worker_trains),
    )
    for title, step in steps:
        try:
            step()
        except Fault as error:
            faults += 1
            say(f"FAULT {title}: {error}")
        else:
            say(f"ok: {title}")
    return faults


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Check built images by running them as pods do.")
    parser.add_argument("--registry", default="", help="in front of the images' names, as they were built")
    parser.add_argument("--tool", choices=("docker", "podman"), help="default: the first that works")
    given = parser.parse_args(arguments)
    try:
        tool = find_tool((given.tool,) if given.tool else ("docker", "podman"))
    except NoTool as error:
        say(f"{error}\nBuildah runs no container as a pod does; podman runs what buildah built.")
        return 1
    with tempfile.TemporaryDirectory(prefix="images-") as folder:
        Path(folder).chmod(0o755)
        checker = Checker(tool, given.registry, Path(folder))
        try:
            faults = check(checker)
        except Fault as error:
            say(f"FAULT {error}")
            return 1
        finally:
            checker.clean_up()
    say(f"{faults} faults" if faults else "both images are right")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
