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


def worker_name(job_name: str, place: int, incarnation: int) -> str:
    """``train-2-1``: place 2, first incarnation. Deterministic, so that creating twice is harmless."""
    return "%s-%d-%d" % (job_name, place, incarnation)
