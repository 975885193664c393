"""Render the plain manifests from the chart, so that there is one source: `make deploy`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bed.binaries import binary

DEPLOY = Path(__file__).parent
CHART = DEPLOY.parent / "charts" / "resumable-training"
HEADER = "# Rendered from charts/resumable-training by `make deploy`: change it there.\n"

# What is rendered with which namespace and values. The CRD has a file of its own.
VARIANTS = {
    DEPLOY / "operator.yaml": ("resumable-system", ["--set", "crds.install=false"]),
    DEPLOY / "namespaced" / "operator.yaml": ("training", ["--set", "watchNamespaces={training}"]),
}


def render(namespace: str, options: list[str]) -> str:
    """The chart as plain YAML.

    Raises:
        subprocess.CalledProcessError: Helm refused the chart; its words are on stderr.
    """
    command = [binary("helm"), "template", "resumable-training", CHART, "--namespace", namespace, *options]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("# Source: ")]
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    for path, (namespace, options) in VARIANTS.items():
        path.write_text(render(namespace, options))
        print(f"wrote {path.relative_to(DEPLOY.parent)}")
