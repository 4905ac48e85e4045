"""The statistics of a sweep: learning rates, paired differences, rankings, laws and scores of its ledger; never torch."""
