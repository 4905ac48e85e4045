"""Which runs to train next so that a law forecasts a target; it trains nothing, and knows tables and laws only."""
