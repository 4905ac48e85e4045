"""Statistics of a sweep's ledger: learning rates, paired differences, rankings, laws and scores; never imports torch."""
