"""Which runs to train next so that a law forecasts a target; trains nothing, and knows tables and laws only."""
