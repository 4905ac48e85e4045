"""Downstream scores: examples as tokens, fine-tuning, probes, zero-shot, and the workers that run them."""
