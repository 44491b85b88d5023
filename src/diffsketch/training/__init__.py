"""Training: data, models, local training of whole cohorts, rounds, and their simulation."""
