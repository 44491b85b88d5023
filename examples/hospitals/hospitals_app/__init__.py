"""A Flower app that trains in ten hospitals, and hides every patient."""
