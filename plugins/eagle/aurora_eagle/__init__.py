"""EAGLE-3 for Aurora: a one-layer drafter that reads the target's hidden states."""
