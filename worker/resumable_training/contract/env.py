"""Names of environment variables: what an agent gives to a rank, and what starts an agent.

``torchrun``'s own names (``RANK``, ``WORLD_SIZE``, ...) are set beside these; see ``agent/ranks.py``.
"""

# agent -> rank ------------------------------------------------------------------------------------
CONTRACT = "RESUMABLE_CONTRACT_VERSION"
JOB = "RESUMABLE_JOB"  # "namespace/name"
JOB_UID = "RESUMABLE_JOB_UID"
RUN_ID = "RESUMABLE_RUN_ID"  # same as torchrun's TORCHELASTIC_RUN_ID
ATTEMPT = "RESUMABLE_ATTEMPT"  # from 1
WORKER = "RESUMABLE_WORKER"  # name of the worker (pod) this rank runs in
WORKER_ADDRESS = "RESUMABLE_WORKER_ADDRESS"  # the worker's own address; ranks bind to it
SOCKET = "RESUMABLE_SOCKET"  # unix stream socket of the agent, JSON lines both ways
PROGRESS = "RESUMABLE_PROGRESS"  # file of contract.progress.SIZE bytes, mapped by rank and agent
STACKS = "RESUMABLE_STACKS"  # file that faulthandler writes the rank's stacks to on SIGUSR1
HIGH_WATER_SAMPLES = "RESUMABLE_HIGH_WATER_SAMPLES"  # most samples ever done by this job
CHECKPOINT_DIR = "RESUMABLE_CHECKPOINT_DIR"  # root of the checkpoint store (a directory)
CHECKPOINT_CONFIG = "RESUMABLE_CHECKPOINT_CONFIG"  # JSON, contract.assignment.CheckpointConfig
RESUME_FROM = (
    "RESUMABLE_RESUME_FROM"  # newest structurally complete DCP directory, for scripts without the library
)
TRACE_DIR = "RESUMABLE_TRACE_DIR"  # when set, each rank writes the sample ids it consumed below it
HANG_SECONDS = "RESUMABLE_HANG_SECONDS"

# operator / local cluster -> agent ------------------------------------------------------------------
AGENT_SPEC = "RESUMABLE_AGENT_SPEC"  # path of the agent's JSON configuration (contract.assignment.AgentSpec)
