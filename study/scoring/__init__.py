"""Downstream scores: which are wanted, examples as tokens, fine-tuning, probes, zero-shot. Nothing is started here."""
