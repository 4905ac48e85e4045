"""From a sweep file to what runs next: cells, tuning, search, trunks, and the cost estimate. Nothing is started here."""
