"""A language model of words and of pairs of adjacent words, which knows frequencies and nothing else."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

_TOKEN = re.compile(r"\w+|[^\w\s]")
_START = "<s>"
_DISCOUNT = 0.75


class Bigrams:
    """Word counts of a text; probabilities of pairs by absolute discounting, of words with one added (Chen and Goodman 1999).

    p(w | v) = max(n(v w) − d, 0)/n(v) + d·k(v)/n(v) · p(w), with d = 0.75, k(v) the different words behind v, and
    p(w) = (n(w) + 1)/(n + V + 1).
    """

    def __init__(self, text: Iterable[str]) -> None:
        self.words: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()
        for document in text:
            for line in document.splitlines():
                tokens = tokenised(line)
                self.words.update(tokens)
                self.pairs.update(zip([_START, *tokens], tokens, strict=False))
        self.before: Counter[str] = Counter()
        self.kinds_behind: Counter[str] = Counter()
        for (first, _), count in self.pairs.items():
            self.before[first] += count
            self.kinds_behind[first] += 1
        self.total = self.words.total()

    def unigram_nats(self, sentence: str) -> float:
        """The negative log likelihood of a sentence as a bag of words; the same for every order of them."""
        return math.fsum(-math.log(self._word(token)) for token in tokenised(sentence))

    def bigram_nats(self, sentence: str) -> float:
        """The negative log likelihood of a sentence, each word from the one before it."""
        tokens = tokenised(sentence)
        return math.fsum(-math.log(self._pair(*pair)) for pair in zip([_START, *tokens], tokens, strict=False))

    def _word(self, token: str) -> float:
        return (self.words[token] + 1) / (self.total + len(self.words) + 1)

    def _pair(self, first: str, second: str) -> float:
        seen = self.before[first]
        if not seen:
            return self._word(second)
        kept = max(self.pairs[first, second] - _DISCOUNT, 0) / seen
        return kept + _DISCOUNT * self.kinds_behind[first] / seen * self._word(second)


def tokenised(text: str) -> list[str]:
    """The words and marks of a text, in lower case."""
    return _TOKEN.findall(text.lower())
