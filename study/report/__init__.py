"""What records say in plain words: the findings, laws, scores and open questions of a sweep's answer, and its tables."""
