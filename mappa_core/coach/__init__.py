"""Coaches score actions, one verdict each; what they can't judge is Unscored, with its cause."""
