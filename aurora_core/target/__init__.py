"""The target model: where it comes from, what it is, and its weights."""
