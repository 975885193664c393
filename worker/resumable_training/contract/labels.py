"""Labels, annotations and the names of objects; one place, so that selectors can't drift."""

GROUP = "resumable.dev"
VERSION = "v1alpha1"
KIND = "ResumableTrainingJob"
PLURAL = "resumabletrainingjobs"
SHORT_NAME = "rtj"

LABEL_JOB = GROUP + "/job"
LABEL_JOB_UID = GROUP + "/job-uid"
LABEL_PLACE = GROUP + "/place"
LABEL_INCARNATION = GROUP + "/incarnation"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "resumable-training"  # what the operator's watch of pods selects by
ANNOTATION_KEY_ID = GROUP + "/key-id"  # of the key that the pod's agent was started with

AGENT_PORT_NAME = "rtj-agent"  # of the port on the container that runs the agent


def worker_name(job_name: str, place: int, incarnation: int) -> str:
    """``train-2-1``: place 2, first incarnation. Deterministic, so that creating twice is harmless."""
    return "%s-%d-%d" % (job_name, place, incarnation)
