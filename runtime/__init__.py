"""What a generated op needs while it runs."""
