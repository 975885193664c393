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
# Newest structurally complete DCP directory, for scripts without the library. In an assignment's ``env``:
# the same for all members, empty for "none", and absent when rank 0's agent is to look for it.
RESUME_FROM = "RESUMABLE_RESUME_FROM"
TRACE_DIR = "RESUMABLE_TRACE_DIR"  # when set, each rank writes the sample ids it consumed below it
HANG_SECONDS = "RESUMABLE_HANG_SECONDS"
# CLOCK_MONOTONIC, ns, when the agent wanted this rank; its process may be older, and have waited for that.
WANTED_NS = "RESUMABLE_WANTED_NS"
KEEPER = "RESUMABLE_KEEPER"  # unix stream socket of the agent for what outlives a rank (contract.keeping)

# user -> rank ---------------------------------------------------------------------------------------
# "1": values that another program pickled beside its tensors may be executed when its checkpoint is resumed.
TRUST_PICKLES = "RESUMABLE_TRUST_PICKLES"

# operator / local cluster -> agent ------------------------------------------------------------------
AGENT_SPEC = "RESUMABLE_AGENT_SPEC"  # contract.assignment.AgentSpec: the JSON itself, or the path of a file
POD_ADDRESS = "RESUMABLE_POD_ADDRESS"  # address of the pod, which AGENT_SPEC refers to

# torchrun's names, set for every rank ---------------------------------------------------------------
TORCHRUN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
)
