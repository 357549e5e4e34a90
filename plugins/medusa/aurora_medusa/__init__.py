"""Medusa drafters: heads that each look one token further ahead, from one hidden state."""
