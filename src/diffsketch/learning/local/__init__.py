"""Local training: the gradients or updates of a whole cohort as one computation."""
