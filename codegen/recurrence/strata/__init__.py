"""States that don't read each other back: each group of states is a step program of its own, over what earlier ones hand on."""
