"""The verifier: decides claims from the forward recurrence alone, finds counterexamples, repairs and conditions."""
