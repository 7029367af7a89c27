"""What Python asks of the compiler, and gets as objects: explanations, verdicts, errors, the catalogue."""
