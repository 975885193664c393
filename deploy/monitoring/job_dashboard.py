"""The dashboard of one job: six rows, from "is it productive?" to "can we trust this?"."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from panels import BAD, GOOD, POOR, Panel, Query, Row, annotation, build, variables

UID = "resumable-job"
J = 'namespace="$namespace", training_job="$training_job"'
RUN = "namespace_training_job"  # what the names of rules about a job begin with
LOST = 'phase!~"productive|suspended|running_opaque|evaluating"'

_RATIO = ((None, BAD), (0.6, POOR), (0.8, GOOD))


def _ratio(title: str, description: str, expr: str) -> Panel:
    return Panel(title, description, "stat", "percentunit", (Query(expr),), 3, 4, _RATIO)


PRODUCTIVE = Row(
    "Is it productive?",
    (
        _ratio(
            "Goodput, 1 h",
            "Share of the last hour, without suspension, that made new steps: scheduling times runtime.",
            f"{RUN}:resumable_goodput:ratio_rate1h{{{J}}}",
        ),
        _ratio(
            "Goodput, 24 h",
            "The same over a day.",
            f"{RUN}:resumable_goodput:ratio_rate1d{{{J}}}",
        ),
        _ratio(
            "Goodput, lifetime",
            "The same over the whole life of the job.",
            f"{RUN}:resumable_goodput:ratio{{{J}}}",
        ),
        _ratio(
            "Scheduling, 1 h",
            "Share of the last hour that it was not queued: what is lost here is the cluster's doing.",
            f"{RUN}:resumable_scheduling_goodput:ratio_rate1h{{{J}}}",
        ),
        _ratio(
            "Runtime, 1 h",
            "Share of new steps in the time that it was not queued: what is lost here is the job's doing.",
            f"{RUN}:resumable_runtime_goodput:ratio_rate1h{{{J}}}",
        ),
        _ratio(
            "Fleet, GPU goodput 1 d",
            "Of all GPU time that jobs held in the last day, the share that made new steps: for comparison.",
            "cluster:resumable_gpu_goodput:ratio_rate1d",
        ),
        Panel(
            "GPU-hours lost",
            "GPU time in the range shown that was held and made no new step. Empty for a job without GPUs.",
            "stat",
            "h",
            (Query(f"sum(increase(resumable_phase_gpu_seconds_total{{{J}, {LOST}}}[$__range])) / 3600"),),
            3,
            4,
        ),
        Panel(
            "Now",
            "The phase that the job is in.",
            "stat",
            "none",
            (Query(f"resumable_job_phase{{{J}}} == 1", "{{phase}}"),),
            3,
            4,
            named=True,
        ),
        Panel(
            "Goodput and its factors",
            "Goodput of the last hour, and what it is the product of.",
            "lines",
            "percentunit",
            (
                Query(f"{RUN}:resumable_goodput:ratio_rate1h{{{J}}}", "goodput"),
                Query(f"{RUN}:resumable_scheduling_goodput:ratio_rate1h{{{J}}}", "scheduling"),
                Query(f"{RUN}:resumable_runtime_goodput:ratio_rate1h{{{J}}}", "runtime"),
            ),
            24,
            7,
            most=1,
        ),
    ),
)

TIME = Row(
    "Where did the time go?",
    (
        Panel(
            "Shares of phases",
            "Each second is in one phase. In a hang nothing is credited until it is declared.",
            "shares",
            "percentunit",
            (
                Query(
                    f"sum by (phase) (rate(resumable_phase_seconds_total{{{J}}}[$__rate_interval])) > 0",
                    "{{phase}}",
                ),
            ),
            16,
            10,
        ),
        Panel(
            "Badput",
            "Seconds in the range shown that made no new step, by phase, longest first.",
            "table",
            "s",
            (
                Query(
                    "sort_desc(sum by (phase) (increase(resumable_phase_seconds_total"
                    f'{{{J}, phase!~"productive|running_opaque"}}[$__range])) > 0)'
                ),
            ),
            8,
            10,
            columns={"phase": "Phase", "Value": "Time"},
        ),
    ),
)

INTERRUPTIONS = Row(
    "Interruptions and recovery",
    (
        Panel(
            "Interruptions by cause",
            "Attempts in the range shown that ended by something nobody planned.",
            "gauge",
            "none",
            (
                Query(
                    f"round(sum by (cause) (increase(resumable_interruptions_total{{{J}}}[$__range])))",
                    "{{cause}}",
                ),
            ),
        ),
        Panel(
            "Recovery by stage",
            "Mean length of the recoveries of the last day, from an interruption to the first step after it.",
            "bars",
            "s",
            (
                Query(
                    f"{RUN}_stage:resumable_recovery_seconds:increase1d{{{J}}}"
                    " / on (namespace, training_job) group_left () "
                    f"({RUN}:resumable_recoveries:increase1d{{{J}}} > 0)",
                    "{{stage}}",
                ),
            ),
        ),
        Panel(
            "Budgets left",
            "Further endings that the job may have. A new checkpoint gives all of them back.",
            "gauge",
            "none",
            (Query(f"resumable_budget_left{{{J}}}", "{{budget}}"),),
            steps=((None, BAD), (1, POOR), (2, GOOD)),
        ),
        Panel(
            "Mean time between interruptions",
            "Of the last day, without suspension and queueing. At least this when there was none.",
            "stat",
            "s",
            (Query(f"{RUN}:resumable_mtbf_seconds:increase1d{{{J}}}"),),
            6,
            4,
        ),
        Panel(
            "Recoveries",
            "Interruptions in the range shown after which it trained again.",
            "stat",
            "none",
            (Query(f"round(sum(increase(resumable_recoveries_total{{{J}}}[$__range])))"),),
            6,
            4,
        ),
        Panel(
            "Steps done again",
            "Steps in the range shown that had been lost.",
            "stat",
            "none",
            (Query(f"round(sum(increase(resumable_rework_steps_total{{{J}}}[$__range])))"),),
            6,
            4,
        ),
        Panel(
            "Planned ends",
            "Attempts in the range shown that were ended on purpose: scaled, changed, suspended, drained.",
            "stat",
            "none",
            (Query(f"round(sum(increase(resumable_planned_endings_total{{{J}}}[$__range])))"),),
            6,
            4,
        ),
    ),
)

CHECKPOINTS = Row(
    "Checkpoints",
    (
        Panel(
            "Age against interval",
            "Age of the newest checkpoint: what a failure would cost now. It should stay below the interval.",
            "lines",
            "s",
            (
                Query(f"time() - resumable_checkpoint_last_success_timestamp_seconds{{{J}}}", "age"),
                Query(f"resumable_checkpoint_interval_seconds{{{J}}}", "interval"),
            ),
        ),
        Panel(
            "Cost of a save and of a restore",
            "Mean of the last hour: how long training stood still, and until a save was committed.",
            "lines",
            "s",
            (
                Query(
                    f"{RUN}_operation:resumable_checkpoint_blocking_seconds:ratio_rate1h{{{J}}}",
                    "{{operation}}: stands still",
                ),
                Query(
                    f"{RUN}_operation:resumable_checkpoint_durable_seconds:ratio_rate1h{{{J}}}",
                    "{{operation}}: committed after",
                ),
            ),
        ),
        Panel(
            "Interval: as set, and as recommended",
            "Recommended is Daly's formula for the measured cost of a save and the interruptions there were.",
            "lines",
            "s",
            (
                Query(f"resumable_checkpoint_interval_seconds{{{J}}}", "as set"),
                Query(f"resumable_checkpoint_recommended_interval_seconds{{{J}}}", "recommended"),
            ),
        ),
        Panel(
            "Size of a checkpoint",
            "Bytes of the newest one.",
            "lines",
            "bytes",
            (Query(f"resumable_checkpoint_bytes{{{J}}}", "bytes"),),
            24,
            6,
        ),
    ),
)

PROGRESS = Row(
    "Progress and size",
    (
        Panel(
            "Step against high-water mark",
            "Where the step is below the most ever done, work is being repeated: a saw-tooth is rework.",
            "lines",
            "none",
            (
                Query(f"resumable_high_water_step{{{J}}}", "most ever done"),
                Query(f"resumable_step{{{J}}}", "step"),
            ),
            12,
        ),
        Panel(
            "Step time",
            "Median over rank 0's steps, against the recent mean of the slowest of all ranks.",
            "lines",
            "s",
            (
                Query(
                    "histogram_quantile(0.5, sum by (le) "
                    f"(rate(resumable_step_seconds_bucket{{{J}}}[$__rate_interval])))",
                    "median",
                ),
                Query(f"resumable_step_slowest_rank_seconds{{{J}}}", "slowest rank"),
            ),
            12,
        ),
        Panel(
            "Samples a second",
            "Of all ranks together, repeated ones too.",
            "lines",
            "none",
            (Query(f"sum(rate(resumable_samples_total{{{J}}}[$__rate_interval]))", "samples/s"),),
        ),
        Panel(
            "Waiting for data",
            "Share of the time that rank 0 waits for its loader.",
            "lines",
            "percentunit",
            (Query(f"sum(rate(resumable_data_wait_seconds_total{{{J}}}[$__rate_interval]))", "waiting"),),
        ),
        Panel(
            "Workers",
            "Wanted, running, and the limits; and how many of them train.",
            "lines",
            "none",
            (
                Query(f"resumable_workers{{{J}}}", "{{kind}}"),
                Query(f"resumable_size{{{J}}}", "training"),
            ),
        ),
    ),
)

TRUST = Row(
    "Can we trust this?",
    (
        Panel(
            "Unaccounted",
            "Share of the last hour that no report explains: goodput is no more exact than that.",
            "stat",
            "percentunit",
            (Query(f'{RUN}_phase:resumable_phase_share:ratio_rate1h{{{J}, phase="unaccounted"}}'),),
            4,
            6,
            ((None, GOOD), (0.01, POOR), (0.02, BAD)),
        ),
        Panel(
            "Sum of shares",
            "Seconds credited in a second, over the last hour: 1, less what is not settled yet.",
            "stat",
            "none",
            (Query(f"sum({RUN}_phase:resumable_phase_seconds:rate1h{{{J}}})"),),
            4,
            6,
        ),
        Panel(
            "Series of this job",
            "Time series that Prometheus keeps of it, from the operator and from rank 0's agent.",
            "stat",
            "none",
            (Query(f'count({{__name__=~"resumable_.+", {J}}})'),),
            4,
            6,
        ),
        Panel(
            "Not settled yet",
            "Newest seconds that wait for an explanation. It grows without end in a hang.",
            "lines",
            "s",
            (Query(f"resumable_unsettled_seconds{{{J}}}", "unsettled"),),
            6,
            6,
        ),
        Panel(
            "Scrapes that work",
            "1 for each target that showed this job in the range shown and answers, else 0.",
            "lines",
            "none",
            (
                Query(
                    "up and on (job, instance) (last_over_time("
                    f"resumable_info{{{J}}}[$__range]) or "
                    f"last_over_time(resumable_agent_step{{{J}}}[$__range]))",
                    "{{job}} {{instance}}",
                ),
            ),
            6,
            6,
            most=1,
        ),
    ),
)


def job_dashboard() -> str:
    """As JSON."""
    made = (
        dashboard.Dashboard("Training job")
        .uid(UID)
        .description("One ResumableTrainingJob: is it productive, and if not, where does its time go?")
        .tags(["resumable-training"])
        .readonly()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .annotation(
            annotation(
                "Interruptions",
                f"sum by (cause) (increase(resumable_interruptions_total{{{J}}}[$__rate_interval])) > 0",
                "red",
            )
        )
        .annotation(
            annotation(
                "Resizes",
                f"sum by (direction) (increase(resumable_resizes_total{{{J}}}[$__rate_interval])) > 0",
                "blue",
            )
        )
    )
    rows = (PRODUCTIVE, TIME, INTERRUPTIONS, CHECKPOINTS, PROGRESS, TRUST)
    return build(variables(made, of_job=True), rows)
