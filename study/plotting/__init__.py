"""Figures: first the data of one, then its drawing. Nothing is tested or fitted here."""
