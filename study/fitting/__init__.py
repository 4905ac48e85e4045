"""What the ledger says: chosen learning rates, paired differences and rankings; reads results, never torch."""
