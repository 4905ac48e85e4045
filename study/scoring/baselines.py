"""What a task gives without an encoder: the majority answer, and a bag of words.

| kind | `majority` | `bag_of_words` |
| --- | --- | --- |
| single, pair | the majority class or labels of train; the mean of numbers | TF-IDF of words and word pairs, regressed |
| tokens | the majority tag | the tag that each word has most often in train |
| spans | the whole context, or no answer if some have none | the run of words nearest to the question's words |
| minimal_pairs | a guess, half right | the sentence whose words are commoner; `bigram`: whose word pairs are likelier |

How strongly regressions are held back is chosen on dev, never on what is reported.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from study.base.randomness import fixed_permutation
from study.scoring.task_metrics import measure
from study.tasks.embedded import ROLE_OF_SPLIT
from study.tasks.examples import MinimalPair, SpanExample, TaskData, TextExample, TokensExample, texts_among

MAJORITY = "majority"
BAG_OF_WORDS = "bag_of_words"
BIGRAM = "bigram"

INVERSE_PENALTIES = (0.1, 1.0, 10.0, 100.0)
"""The strengths of regularisation to choose from: C of logistic regression, 1/alpha of ridge regression."""

MOST_TRAIN = 100_000
"""A bag of words learns from at most so many examples, the first of a fixed permutation: files may be sorted by class."""

FEW_EXAMPLES = 1000
"""In more examples than these, only words of at least two of them count.

Where no word occurs twice, all count: such words predict nothing, which the baseline is to show.
"""

_FUNCTION_WORDS = (
    "a an and are as at be been by did do does for from had has have how in is it its of on or s that the to was were what "
    "when where which who whom whose why with"
)

_TERM = r"\w+|[^\w\s]"

_WORD = re.compile(r"\w+(?:[.'-]\w+)*|[^\w\s]")

Predictions = dict[str, list[Any]]


def baselines(task: TaskData, text: Callable[[], Iterable[str]] | None = None) -> dict[str, dict[str, float]]:
    """Every metric of each baseline on test; `text` supplies the word counts of minimal pairs."""
    return {name: measure(task, "test", predictions) for name, predictions in baseline_predictions(task, text).items()}


def baseline_predictions(task: TaskData, text: Callable[[], Iterable[str]] | None = None) -> Predictions:
    """Return the predictions of each baseline on test.

    Word counts default to the docstrings.
    """
    match task.spec.kind:
        case "single" | "pair":
            return _of_texts(task)
        case "tokens":
            return _of_words(task)
        case "spans":
            requested = [example for example in task.test if isinstance(example, SpanExample)]
            usual = ["" if task.spec.unanswerable else example.context for example in requested]
            return {MAJORITY: usual, BAG_OF_WORDS: [nearest_run(example) for example in requested]}
        case "minimal_pairs":
            return _of_pairs([example for example in task.test if isinstance(example, MinimalPair)], text or docstring_text)


def docstring_text() -> Iterable[str]:
    """Return the training documents of the docstring corpus."""
    from study.data.corpora import split_of
    from study.data.docstrings import read_docstrings

    return (text for _, text in read_docstrings() if ROLE_OF_SPLIT[split_of(text.strip())] == "train")


def _of_texts(task: TaskData) -> Predictions:
    train, dev, test = (texts_among(task.splits[split]) for split in ("train", "dev", "test"))
    gold = [example.label for example in train]
    constant = float(np.mean(gold)) if task.spec.regression else Counter(gold).most_common(1)[0][0]
    kept = [train[place] for place in sorted(fixed_permutation(len(train))[:MOST_TRAIN])]
    features = Bag(kept)
    learned, chosen_on, reported_on = features(kept), features(dev), features(test)
    best, best_score = None, -np.inf
    for inverse_penalty in INVERSE_PENALTIES:
        model = fit_to_labels(task, _regression(task, inverse_penalty), learned, [example.label for example in kept])
        score = measure(task, "dev", _predicted(model, chosen_on))[task.spec.headline]
        if score > best_score:
            best, best_score = model, score
    assert best is not None
    return {MAJORITY: [constant] * len(test), BAG_OF_WORDS: _predicted(best, reported_on)}


def _predicted(model: Any, features: Any) -> list[Any]:
    predicted = model.predict(features).tolist()
    return [tuple(row) if isinstance(row, list) else row for row in predicted]


def _regression(task: TaskData, inverse_penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    if task.spec.regression:
        return Ridge(alpha=1 / inverse_penalty, solver="lsqr", random_state=0)
    solver = "liblinear" if len(task.labels) == 2 or task.spec.multi_label else "lbfgs"
    return LogisticRegression(C=inverse_penalty, solver=solver, max_iter=300, random_state=0)


def fit_to_labels(task: TaskData, model: Any, features: Any, labels: Any) -> Any:
    """Return a model fitted to labels.

    Of several labels a text, a copy for each.
    """
    from sklearn.multiclass import OneVsRestClassifier

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Label .* is present in all training examples")
        return (OneVsRestClassifier(model) if task.spec.multi_label else model).fit(features, labels)


class Bag:
    """TF-IDF of words and pairs of adjacent words; of two texts also products, differences and their cosine."""

    def __init__(self, examples: Sequence[TextExample]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        texts = [text for example in examples for text in (example.text, example.text_b) if text is not None]
        fewest = 2 if len(examples) > FEW_EXAMPLES and _any_recurs(texts) else 1
        self.words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=_TERM, min_df=fewest).fit(texts)

    def __call__(self, examples: Sequence[TextExample]) -> Any:
        """Return the features of texts or of pairs of texts, one row each, sparse."""
        from scipy.sparse import csr_array, hstack

        a = csr_array(self.words.transform([example.text for example in examples]))
        seconds = [example.text_b for example in examples if example.text_b is not None]
        if not seconds:
            return a
        b = csr_array(self.words.transform(seconds))
        shared = a.multiply(b)
        return hstack([a, b, abs(a - b), shared, csr_array(shared.sum(axis=1)[:, None])], format="csr")


def _any_recurs(texts: Iterable[str]) -> bool:
    seen: set[str] = set()
    for text in texts:
        words = set(re.findall(_TERM, text.lower()))
        if words & seen:
            return True
        seen |= words
    return False


def _of_words(task: TaskData) -> Predictions:
    labels, tags = Counter[int](), defaultdict[str, Counter[int]](Counter)
    for example in task.train:
        assert isinstance(example, TokensExample)
        labels.update(example.labels)
        for token, label in zip(example.tokens, example.labels, strict=True):
            tags[token][label] += 1
            if token.lower() != token:
                tags[token.lower()][label] += 1
    majority = labels.most_common(1)[0][0]
    of_word = {token: counts.most_common(1)[0][0] for token, counts in tags.items()}
    test = [example for example in task.test if isinstance(example, TokensExample)]
    return {
        MAJORITY: [[majority] * len(example.tokens) for example in test],
        BAG_OF_WORDS: [
            [of_word.get(token, of_word.get(token.lower(), majority)) for token in example.tokens] for example in test
        ],
    }


def nearest_run(example: SpanExample) -> str:
    """Return the run of words nearest to those of the question, without any of them, function words or punctuation.

    Nearness is the sum of 1/(5 + characters between) over the occurrences of the question's words in the context.
    """
    function_words = frozenset(_FUNCTION_WORDS.split())
    requested = set(_WORD.findall(example.question.lower())) - function_words
    words = [(match.group().lower(), match.start(), match.end()) for match in _WORD.finditer(example.context)]
    places = [start for word, start, _ in words if word in requested]
    kept = groupby(words, lambda word: word[0][0].isalnum() and word[0] not in requested and word[0] not in function_words)
    runs = [(run[0][1], run[-1][2]) for is_run, members in kept if is_run and (run := list(members))]

    def nearness(run: tuple[int, int]) -> float:
        return sum(1 / (5 + min(abs(place - run[0]), abs(place - run[1]))) for place in places)

    start, end = max(runs, key=nearness, default=(0, len(example.context)))
    return example.context[start:end]


def _of_pairs(test: Sequence[MinimalPair], text: Callable[[], Iterable[str]]) -> Predictions:
    model = Bigrams(text())
    compared = {BAG_OF_WORDS: model.unigram_nats, BIGRAM: model.bigram_nats}
    predictions = {
        name: [0.5 + 0.5 * float(np.sign(nats(pair.bad) - nats(pair.good))) for pair in test] for name, nats in compared.items()
    }
    return {MAJORITY: [0.5] * len(test), **predictions}


_TOKEN = re.compile(r"\w+|[^\w\s]")
_START = "<s>"
_DISCOUNT = 0.75


class Bigrams:
    """Word counts of a text: pairs by absolute discounting, words by adding one (Chen and Goodman 1999).

    p(w | v) = max(n(v w) − d, 0)/n(v) + d·k(v)/n(v) · p(w), with d = 0.75, k(v) the number of different words after v, and p(w)
    = (n(w) + 1)/(n + V + 1).
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
        """Return a sentence's negative log likelihood as a bag of words."""
        return math.fsum(-math.log(self._word(token)) for token in tokenised(sentence))

    def bigram_nats(self, sentence: str) -> float:
        """Return a sentence's negative log likelihood, each word given the one before it."""
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
    """Return the words and punctuation of a text, in lower case."""
    return _TOKEN.findall(text.lower())
