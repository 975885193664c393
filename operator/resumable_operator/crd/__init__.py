"""The CustomResourceDefinition, made from the models.

Pure; ``python -m resumable_operator.crd`` writes it to where it is committed.
"""

from resumable_operator.crd.document import as_yaml, crd

__all__ = ["as_yaml", "crd"]
