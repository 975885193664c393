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

RECOVERY_STAGES = ("detect", "reschedule", "rendezvous", "restore", "warmup")
GROW, SHRINK = "grow", "shrink"
RESIZE_DIRECTIONS = (GROW, SHRINK)
BUDGETS = ("user_error", "infrastructure", "preemption", "without_progress")
OPERATIONS = ("save", "restore")  # of the checkpoint store

PREFIX = "resumable_"
# Worker metrics, on the agent of rank 0.
STEP_SECONDS = "resumable_step_seconds"
SAMPLES_TOTAL = "resumable_samples_total"
AGENT_STEP = "resumable_agent_step"
CHECKPOINT_BLOCKING_SECONDS = "resumable_checkpoint_blocking_seconds"
CHECKPOINT_DURABLE_SECONDS = "resumable_checkpoint_durable_seconds"
CHECKPOINT_BYTES = "resumable_checkpoint_bytes"
DATA_WAIT_SECONDS_TOTAL = "resumable_data_wait_seconds_total"
PRELOADED_BYTES = "resumable_preloaded_bytes"

# Operator metrics of one job, from its status; labels NAMESPACE and JOB.
NAMESPACE, JOB = "namespace", "training_job"  # ("job" belongs to Prometheus)
INFO = "resumable_info"
PHASE_SECONDS_TOTAL = "resumable_phase_seconds_total"
GOODPUT_RATIO = "resumable_goodput_ratio"
PHASE_GPU_SECONDS_TOTAL = "resumable_phase_gpu_seconds_total"
UNSETTLED_SECONDS = "resumable_unsettled_seconds"
INTERRUPTIONS_TOTAL = "resumable_interruptions_total"
PLANNED_ENDINGS_TOTAL = "resumable_planned_endings_total"
RECOVERIES_TOTAL = "resumable_recoveries_total"
RECOVERY_SECONDS_TOTAL = "resumable_recovery_seconds_total"
INTERRUPTION_GPU_SECONDS_TOTAL = "resumable_interruption_gpu_seconds_total"
RESIZES_TOTAL = "resumable_resizes_total"
BUDGET_LEFT = "resumable_budget_left"
REWORK_STEPS_TOTAL = "resumable_rework_steps_total"
ATTEMPTS_TOTAL = "resumable_attempts_total"
ATTEMPT_TIMESTAMP_SECONDS = "resumable_attempt_timestamp_seconds"
JOB_PHASE = "resumable_job_phase"
RUNNING = "resumable_running"
WORKERS = "resumable_workers"
SIZE = "resumable_size"
STEP = "resumable_step"
HIGH_WATER_STEP = "resumable_high_water_step"
LAST_PROGRESS_TIMESTAMP_SECONDS = "resumable_last_progress_timestamp_seconds"
STEP_SLOWEST_RANK_SECONDS = "resumable_step_slowest_rank_seconds"
CHECKPOINT_LAST_SUCCESS_TIMESTAMP_SECONDS = "resumable_checkpoint_last_success_timestamp_seconds"
CHECKPOINT_INTERVAL_SECONDS = "resumable_checkpoint_interval_seconds"
CHECKPOINT_RECOMMENDED_INTERVAL_SECONDS = "resumable_checkpoint_recommended_interval_seconds"

WORKER_KINDS = ("desired", "ready", "min", "max")

# The operator's own.
OPERATOR_BUILD_INFO = "resumable_operator_build_info"
OPERATOR_PASSES_TOTAL = "resumable_operator_passes_total"
OPERATOR_PASS_SECONDS = "resumable_operator_pass_seconds"  # noqa: S105  a duration, no password
OPERATOR_QUEUE_SECONDS = "resumable_operator_queue_seconds"
OPERATOR_API_REQUEST_SECONDS = "resumable_operator_api_request_seconds"
OPERATOR_EVENT_TO_ASSIGNMENT_SECONDS = "resumable_operator_event_to_assignment_seconds"
OPERATOR_RELIST_FAILURES_TOTAL = "resumable_operator_relist_failures_total"
OPERATOR_API_REQUESTS_TOTAL = "resumable_operator_api_requests_total"
OPERATOR_QUEUE_LENGTH = "resumable_operator_queue_length"
OPERATOR_AGENTS_CONNECTED = "resumable_operator_agents_connected"
OPERATOR_RELIST_TIMESTAMP_SECONDS = "resumable_operator_relist_timestamp_seconds"
