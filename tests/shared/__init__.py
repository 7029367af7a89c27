"""What several tests share: specs, calls of ops with their definition, and commands that try more than the tests do."""
