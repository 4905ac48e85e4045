"""What ledgers and tables say: learning rates, differences, rankings, laws, forecasts, frontiers and scores; never torch."""
