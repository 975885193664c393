"""Messages on the unix socket between a rank and its agent: one JSON object a line, both ways.

From the rank: ``hello`` first, then reports that the agent numbers and passes on as events of the same kind.
From the agent: ``drain`` and ``settings``. A rank that never connects does not use the library.
"""

HELLO = "hello"  # {rank, pid, version}
RESTORED = "restored"  # as events.RESTORED
CHECKPOINT = "checkpoint"  # as events.CHECKPOINT
CHECKPOINT_FAILED = "checkpoint_failed"
WARNING = "warning"  # {message}
FROM_RANK = (HELLO, RESTORED, CHECKPOINT, CHECKPOINT_FAILED, WARNING)

DRAIN = "drain"  # {reason, seconds}
SETTINGS = "settings"  # {checkpoint: CheckpointConfig as a dict}
