"""Words that metrics, ledger, status and dashboards share (GOODPUT vocabulary), and metric names."""

LEDGER_PHASES = (
    "suspended",
    "queued",
    "starting",
    "rendezvous",
    "restoring",
    "warmup",
    "productive",
    "rework",
    "checkpointing",
    "data_stall",
    "evaluating",
    "resizing",
    "detecting",
    "recovering",
    "running_opaque",
    "unaccounted",
)

INTERRUPTION_CAUSES = ("preempted", "node_lost", "evicted", "oom", "crash", "hang", "numeric", "unknown")
PLANNED_CAUSES = ("scale", "config", "suspend", "deadline", "drained")

PREFIX = "resumable_"
# Worker metrics, on the agent of rank 0.
STEP_SECONDS = "resumable_step_seconds"
SAMPLES_TOTAL = "resumable_samples_total"
STEP = "resumable_step"
CHECKPOINT_BLOCKING_SECONDS = "resumable_checkpoint_blocking_seconds"
CHECKPOINT_DURABLE_SECONDS = "resumable_checkpoint_durable_seconds"
CHECKPOINT_BYTES = "resumable_checkpoint_bytes"
DATA_WAIT_SECONDS_TOTAL = "resumable_data_wait_seconds_total"
