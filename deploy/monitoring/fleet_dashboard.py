"""The dashboard of all jobs: goodput by namespace, the worst jobs, where GPU time is lost; the operator."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as models
from job_dashboard import LOST, RUN, UID
from panels import BAD, GOOD, POOR, Panel, Query, Row, build, variables

N = 'namespace=~"$namespace"'
GPU = f"resumable_phase_gpu_seconds_total{{{N}"
PASSES = "resumable_operator_pass_seconds_bucket"
ASSIGNED = "resumable_operator_event_to_assignment_seconds_bucket"
_RATIO = ((None, BAD), (0.6, POOR), (0.8, GOOD))
WORST = 15


def _of_worst(factor: str) -> Query:
    """Jobs whose goodput is lowest; ``factor`` of each of them."""
    rule = f"{RUN}:resumable_{{}}:ratio_rate1h{{{{{N}}}}}".format
    chosen = f"bottomk({WORST}, {rule('goodput')})"
    if factor == "goodput":
        return Query(chosen)
    return Query(f"{rule(factor)} and on (namespace, training_job) {chosen}")


FLEET = Row(
    "Is the fleet productive?",
    (
        Panel(
            "GPU goodput, 1 d",
            "Of all GPU time that jobs held in the last day, the share that made new steps.",
            "stat",
            "percentunit",
            (Query("cluster:resumable_gpu_goodput:ratio_rate1d"),),
            4,
            5,
            _RATIO,
        ),
        Panel(
            "GPU-hours lost",
            "GPU time in the range shown that was held and made no new step.",
            "stat",
            "h",
            (Query(f"sum(increase({GPU}, {LOST}}}[$__range])) / 3600"),),
            4,
            5,
        ),
        Panel(
            "Jobs by phase",
            "How many jobs are in each phase of their life now.",
            "gauge",
            "none",
            (Query(f"sum by (phase) (resumable_job_phase{{{N}}})", "{{phase}}"),),
            8,
            5,
        ),
        Panel(
            "Workers wanted and running",
            "Of all jobs that are not over or suspended.",
            "gauge",
            "none",
            (
                Query(
                    f'sum by (kind) (resumable_workers{{{N}, kind=~"desired|ready"}} unless on (namespace, '
                    'training_job) resumable_job_phase{phase=~"Suspended|Succeeded|Failed"} == 1)',
                    "{{kind}}",
                ),
            ),
            8,
            5,
        ),
        Panel(
            "GPU goodput by namespace",
            "Of the GPU time that a namespace's jobs held in the last day, the share that made new steps.",
            "lines",
            "percentunit",
            (Query(f"namespace:resumable_gpu_goodput:ratio_rate1d{{{N}}}", "{{namespace}}"),),
            12,
            9,
            most=1,
        ),
        Panel(
            "Worst jobs of the last hour",
            "Lowest goodput, and its factors: low scheduling is the cluster's doing, low runtime the job's.",
            "table",
            "percentunit",
            (_of_worst("goodput"), _of_worst("scheduling_goodput"), _of_worst("runtime_goodput")),
            12,
            9,
            columns={
                "namespace": "Namespace",
                "training_job": "Job",
                "Value #A": "Goodput",
                "Value #B": "Scheduling",
                "Value #C": "Runtime",
            },
        ),
    ),
)

LOSSES = Row(
    "What are GPUs lost to?",
    (
        Panel(
            "GPUs by what they do",
            "GPU-seconds credited in a second, by phase: about the number of GPUs.",
            "bars",
            "none",
            (Query(f"sum by (phase) (rate({GPU}}}[$__rate_interval])) > 0", "{{phase}}"),),
            12,
            9,
        ),
        Panel(
            "GPU-hours lost, by phase",
            "GPU time in the range shown that was held and made no new step, by what it went to.",
            "gauge",
            "h",
            (Query(f"sum by (phase) (increase({GPU}, {LOST}}}[$__range])) / 3600 > 0", "{{phase}}"),),
            12,
            9,
        ),
        Panel(
            "GPU-hours lost, by cause",
            "GPU time in the range shown that interruptions cost: recoveries, and steps done again.",
            "gauge",
            "h",
            (
                Query(
                    "sum by (cause) (increase(resumable_interruption_gpu_seconds_total"
                    f"{{{N}}}[$__range])) / 3600",
                    "{{cause}}",
                ),
            ),
            8,
            8,
        ),
        Panel(
            "Interruptions by cause",
            "Attempts in the range shown that ended by something nobody planned, of all jobs.",
            "gauge",
            "none",
            (
                Query(
                    f"round(sum by (cause) (increase(resumable_interruptions_total{{{N}}}[$__range])))",
                    "{{cause}}",
                ),
            ),
            8,
            8,
        ),
        Panel(
            "Jobs interrupted most",
            "Interruptions in the range shown, of the jobs with most of them.",
            "table",
            "none",
            (
                Query(
                    f"topk({WORST}, round(sum by (namespace, training_job) "
                    f"(increase(resumable_interruptions_total{{{N}}}[$__range]))) > 0)"
                ),
            ),
            8,
            8,
            columns={"namespace": "Namespace", "training_job": "Job", "Value": "Interruptions"},
        ),
    ),
)

OPERATOR = Row(
    "Is the operator well?",
    (
        Panel(
            "Passes",
            "Looks at a job, by how they ended. `error` is a bug, with a traceback in the log.",
            "bars",
            "ops",
            (
                Query(
                    "sum by (result) (rate(resumable_operator_passes_total[$__rate_interval]))", "{{result}}"
                ),
            ),
        ),
        Panel(
            "Length of a pass",
            "Median and 99th percentile of how long the operator looks at a job.",
            "lines",
            "s",
            tuple(
                Query(
                    f"histogram_quantile({quantile}, sum by (le) (rate({PASSES}[$__rate_interval])))",
                    f"p{quantile * 100:.0f}",
                )
                for quantile in (0.5, 0.99)
            ),
        ),
        Panel(
            "From an ending to the next assignment",
            "From the first evidence that an attempt is over until all workers of the next have been told.",
            "lines",
            "s",
            tuple(
                Query(
                    f"histogram_quantile({quantile}, sum by (le) (rate({ASSIGNED}[$__range])))",
                    f"p{quantile * 100:.0f}",
                )
                for quantile in (0.5, 0.99)
            ),
        ),
        Panel(
            "Queue and agents",
            "Jobs that wait for a pass, and agents whose event stream is open.",
            "lines",
            "none",
            (
                Query("sum(resumable_operator_queue_length)", "jobs waiting"),
                Query("sum(resumable_operator_agents_connected)", "agents connected"),
            ),
        ),
        Panel(
            "Requests to the API server",
            "By answer; 0 is none. Watches are not counted.",
            "lines",
            "reqps",
            (
                Query(
                    "sum by (code) (rate(resumable_operator_api_requests_total[$__rate_interval]))",
                    "{{code}}",
                ),
            ),
        ),
        Panel(
            "Age of the last comparison",
            "Since the operator last compared itself with the API server.",
            "lines",
            "s",
            (Query("time() - max(resumable_operator_relist_timestamp_seconds)", "age"),),
        ),
        Panel(
            "Comparisons that failed",
            "Of the operator with the API server: it was not there, or refused. It tries again by itself.",
            "bars",
            "none",
            (Query("sum(increase(resumable_operator_relist_failures_total[$__rate_interval]))", "failures"),),
            24,
            5,
        ),
    ),
)


def fleet_dashboard() -> str:
    """As JSON."""
    to_job = (
        dashboard.DashboardLink("One job")
        .type(models.DashboardLinkType.LINK)
        .url(f"/d/{UID}")
        .include_vars(True)
        .keep_time(True)
    )
    made = (
        dashboard.Dashboard("Training fleet")
        .uid("resumable-fleet")
        .description(
            "All ResumableTrainingJobs: what share of the GPU time makes new steps, and what is the rest?"
        )
        .tags(["resumable-training"])
        .readonly()
        .refresh("1m")
        .time("now-24h", "now")
        .timezone("browser")
        .link(to_job)
    )
    return build(variables(made, of_job=False), (FLEET, LOSSES, OPERATOR))
