"""A plugin that works: it repeats the last token."""
