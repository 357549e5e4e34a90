"""Stock vLLM as a backend: a controller's half here, and an engine's half in `engine`."""
