"""What generated torch forms share: chunks of sequences, decays, coupled states, segments, loops over steps."""
