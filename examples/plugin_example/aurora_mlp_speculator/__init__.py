"""An MLP speculator for Aurora: a whole plugin to start from."""
