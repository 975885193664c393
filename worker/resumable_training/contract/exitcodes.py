"""Exit codes of a rank that the library chooses, and what each tells the operator.

Codes below 80 are the script's own. 80-89 are ours: outside shells' 126-165 and sysexits' 64-78.
"""

SUCCESS = 0
DRAINED = 80  # stopped at the agreed step with everything committed: no rework
USER_ERROR = (
    81  # the job's own input is wrong (other model, other data, bad arguments): retrying is pointless
)
NUMERIC = 82  # a non-finite loss, and the user asked to stop on it
MASTER_BIND = 83  # rank 0 could not bind the master port: the attempt is repeated for free
SUPERSEDED = 84  # a newer attempt owns the store; this one must not train
STORAGE = 85  # the store can't be read or written now ("cannot tell"): infrastructure
PEER_LOST = 86  # a collective failed because a peer went away: never the first cause
START_TIMEOUT = 87  # the process group did not form in time: infrastructure

MEANING = {
    SUCCESS: "finished",
    DRAINED: "drained: committed at the agreed step and stopped",
    USER_ERROR: "user error, explained in its output",
    NUMERIC: "non-finite loss",
    MASTER_BIND: "the master port was taken between choosing and binding it",
    SUPERSEDED: "another attempt owns the checkpoint store",
    STORAGE: "the checkpoint store could not be read or written",
    PEER_LOST: "a peer went away in the middle of a collective",
    START_TIMEOUT: "the process group did not form in time",
}


def describe_exit(code: int) -> str:
    """One phrase for an exit status as ``subprocess`` reports it (negative: killed by that signal)."""
    if code < 0:
        import signal

        try:
            return "killed by " + signal.Signals(-code).name
        except ValueError:
            return "killed by signal %d" % -code
    return MEANING.get(code, "exit code %d" % code)
