"""Drafts without training: what followed the same words before, in this request and in others."""
