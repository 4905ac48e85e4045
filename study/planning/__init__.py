"""From a sweep file to the next runs: cells, tuning, search, trunks, cost and memory. Nothing is started here."""
