"""Traffic: prompts, their replay against a server, and the proof that speculation is lossless."""
