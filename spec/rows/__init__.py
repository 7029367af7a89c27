"""What layers do to a step's values before and after a recurrence, as row maps: one kernel forwards, one backwards."""
