"""Write the dashboards, and what the chart has of deploy/monitoring. Run by `make deploy`."""

from __future__ import annotations

import shutil
from pathlib import Path

from fleet_dashboard import fleet_dashboard
from job_dashboard import job_dashboard

HERE = Path(__file__).parent
IN_CHART = HERE.parents[1] / "charts" / "resumable-training" / "files" / "monitoring"
RULES = ("rules.yaml", "alerts.yaml")
DASHBOARDS = {"job.json": job_dashboard, "fleet.json": fleet_dashboard}


def write() -> list[Path]:
    """All of them, in both places; a chart can't read what lies outside of it."""
    for name, made in DASHBOARDS.items():
        (HERE / name).write_text(made())
    IN_CHART.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copyfile(HERE / name, IN_CHART / name)) for name in (*RULES, *DASHBOARDS)]


if __name__ == "__main__":
    for path in write():
        print(f"wrote {path.name}")
