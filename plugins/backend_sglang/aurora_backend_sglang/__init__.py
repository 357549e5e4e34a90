"""Stock SGLang as a backend: a controller's half here, and an engine's half in `engine`."""
