"""Trains GPT-2 from scratch."""
