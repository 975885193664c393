"""Signs that a rank is not well: stacks on request, and what its last error means."""
