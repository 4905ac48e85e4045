"""Minimal pairs by pseudo-log-likelihood, each word from left to right. Letters: N masked inputs, S tokens, V vocabulary.

PLL-word-l2r (Kauf and Ivanova 2023, arXiv:2305.10588): the score of a sentence is the sum of the log probabilities of its
tokens, each with itself and the later pieces of its word masked, so that the pieces of a word do not reveal one another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding

from study.counting.memory import Precision
from study.data.tokenizing import SpecialTokens
from study.model.layers import autocast
from study.model.masked_language_model import MaskedLanguageModel
from study.scoring.predictions import test_facts
from study.scoring.pretrained import Pretrained
from study.scoring.scored_examples import lost_text, spaced_words
from study.scoring.task_inputs import ScoreAttempt
from study.scoring.task_metrics import by_paradigm
from study.tasks.examples import MinimalPair, TaskData
from study.training.attempts import Preempted, StopSignal

BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}
"""Tokens of a batch; on a CPU what fits its caches."""

MOST_LOGITS = 2**26
"""Logits of a batch, one position each: a quarter of a gigabyte in fp32."""

SENTENCES = 20_000
"""Sentences to tokenise at a time."""

CELLS = 2**24
"""Tokens of the masked inputs that are made at a time, T inputs for a sentence of T: about 50 bytes each."""


def score_pairs(scoring: ScoreAttempt, task: TaskData) -> dict[str, Any]:
    """Score every pair by which sentence the encoder finds more likely; equal scores count as half."""
    started, config, run = time.perf_counter(), scoring.config, scoring.run
    seed = config.seed if config.protocol == "random_init" else None
    model = run.masked_language_model(seed).to(torch.device(scoring.execution.device))
    pairs = [example for example in task.test if isinstance(example, MinimalPair)]
    sentences = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    scorer = PseudoLikelihood(model, run, scoring.precision, config.knobs.max_length)
    scores, cut, tokens = scorer(sentences, scoring.stop)
    of = dict(zip(sentences, scores.tolist(), strict=True))
    shortened = {sentence for sentence, is_cut in zip(sentences, cut, strict=True) if is_cut}
    won = [(1 + np.sign(of[pair.good] - of[pair.bad])) / 2 for pair in pairs]
    facts = test_facts(task, won)
    facts["test_scores"] |= {f"paradigm/{name}": value for name, value in by_paradigm(pairs, won).items()}
    facts["truncated_examples"] = sum(pair.good in shortened or pair.bad in shortened for pair in pairs)
    facts["lost_share"] = lost_text(run.tokenizer, task).share
    seconds = time.perf_counter() - started
    return facts | {"seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds}


class PseudoLikelihood:
    """Scores sentences; equal masked inputs are encoded once."""

    def __init__(self, model: MaskedLanguageModel, run: Pretrained, precision: Precision, max_length: int | None) -> None:
        self.model, self.run, self.precision = model, run, precision
        self.room = run.max_length(max_length) - 2
        self.device = next(model.parameters()).device

    def __call__(self, sentences: Sequence[str], stop: StopSignal) -> tuple[NDArray[np.float64], NDArray[np.bool_], int]:
        """Return the score of each sentence, whether it was cut, and the number of encoded tokens.

        Raises Preempted on an order to stop.
        """
        scores, cut = np.zeros(len(sentences)), np.zeros(len(sentences), dtype=np.bool_)
        tokens = 0
        for begin in range(0, len(sentences), SENTENCES):
            texts = list(sentences[begin : begin + SENTENCES])
            part = self.run.tokenizer.encode_batch(texts, add_special_tokens=False)
            cut[begin : begin + len(part)] = [len(encoding.ids) > self.room for encoding in part]
            with autocast(self.device.type, self.precision):
                for inputs in masked_inputs(texts, part, self.run.special, self.room):
                    np.add.at(scores, begin + inputs.sentence, self._nats(inputs, stop))
                    tokens += inputs.unique.size
        return scores, cut, tokens

    @torch.inference_mode()
    def _nats(self, inputs: MaskedInputs, stop: StopSignal) -> NDArray[np.float64]:
        all_nats = np.empty(len(inputs.target))
        length = inputs.unique.shape[1]
        vocabulary = self.model.architecture.vocabulary
        size = max(1, min(BATCH_TOKENS[self.device.type] // length, MOST_LOGITS // vocabulary))
        for begin in range(0, len(inputs.unique), size):
            if stop.received:
                raise Preempted
            first, last = np.searchsorted(inputs.of, [begin, begin + size])
            tokens_NxS = torch.from_numpy(inputs.unique[begin : begin + size]).to(self.device)
            positions_Nx1 = torch.from_numpy(inputs.position[begin : begin + size, None]).to(self.device)
            rows = torch.from_numpy(inputs.of[first:last] - begin).to(self.device)
            targets = torch.from_numpy(inputs.target[first:last]).to(self.device)
            logits_NxV = self.model(tokens_NxS, positions_Nx1)[:, 0].float()
            nats = logits_NxV[rows, targets] - logits_NxV.logsumexp(1)[rows]
            all_nats[first:last] = nats.double().cpu().numpy()
        return all_nats


class MaskedInputs:
    """Masked inputs of one length: `unique` (N, S) with the position to predict, and the targets.

    Target i is a token of sentence `sentence[i]` at input `of[i]`; targets are in the order of their inputs.
    """

    def __init__(
        self, rows: NDArray[np.int64], positions: NDArray[np.int64], targets: NDArray[np.int64], sentences: NDArray[np.int64]
    ) -> None:
        keyed = np.ascontiguousarray(np.concatenate([rows, positions[:, None]], 1))
        as_bytes = keyed.view(np.dtype((np.void, keyed.dtype.itemsize * keyed.shape[1])))[:, 0]
        _, first, inverse = np.unique(as_bytes, return_index=True, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        self.unique, self.position = rows[first], positions[first]
        self.of, self.target, self.sentence = inverse[order], targets[order], sentences[order]


def words_of(text: str, encoding: Encoding) -> NDArray[np.int64]:
    """Return the word of each piece, by the tokeniser or at white space."""
    if not encoding.ids:
        return np.zeros(0, dtype=np.int64)
    own, spaced = np.array(encoding.word_ids, dtype=np.int64), spaced_words(encoding.offsets, text)
    return np.append(0, np.cumsum((np.diff(own) != 0) | (np.diff(spaced) != 0)))


def masked_inputs(
    texts: Sequence[str], encodings: Sequence[Encoding], special: SpecialTokens, room: int
) -> Iterator[MaskedInputs]:
    """Yield every sentence once for each token, with it and the rest of its word masked, up to CELLS of one length together."""
    groups: dict[int, list[tuple[int, list[int], NDArray[np.int64]]]] = {}
    for number, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
        ids, words = encoding.ids[:room], words_of(text, encoding)[:room]
        groups.setdefault(len(ids), []).append((number, ids, words))
    groups.pop(0, None)  # a sentence without tokens scores 0
    for length, alike in groups.items():
        at_once = max(1, CELLS // length**2)
        for begin in range(0, len(alike), at_once):
            group = alike[begin : begin + at_once]
            ids_MxT = np.array([ids for _, ids, _ in group], dtype=np.int64).reshape(len(group), length)
            words_MxT = np.array([words for _, _, words in group], dtype=np.int64).reshape(len(group), length)
            yield _masked(ids_MxT, words_MxT, np.array([number for number, _, _ in group]), special)


def _masked(
    ids_MxT: NDArray[np.int64], words_MxT: NDArray[np.int64], numbers: NDArray[np.int64], special: SpecialTokens
) -> MaskedInputs:
    sentences, length = ids_MxT.shape
    later = np.arange(length)[None, :] >= np.arange(length)[:, None]
    same_word = words_MxT[:, None, :] == words_MxT[:, :, None]
    masked = np.where(same_word & later, special.mask, ids_MxT[:, None, :]).reshape(-1, length)
    edge = np.full((len(masked), 1), special.cls)
    rows = np.concatenate([edge, masked, np.full_like(edge, special.sep)], 1)
    positions = np.tile(np.arange(1, length + 1), sentences)
    return MaskedInputs(rows, positions, ids_MxT.ravel(), np.repeat(numbers, length))
