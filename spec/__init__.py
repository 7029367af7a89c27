"""The catalogue: one file per recurrence."""
