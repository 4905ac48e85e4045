"""Memory of training and inference by part, in bytes: integer arithmetic on what the modules really keep, without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from study.base.errors import InputError
from study.counting.architecture import Architecture
from study.counting.components import matrices
from study.counting.parameters import MASKING_RATE, masked_positions, parameters

Precision = Literal["fp32", "bf16"]
AskedPrecision = Literal[Precision, "auto"]
"""A precision, or the one that suits the device (study.training.execution.resolve_precision)."""

Device = Literal["cpu", "cuda"]

FLOAT, TOKEN = 4, 8
"""Bytes of a float32 and of a token id (int64)."""

NOT_COPIED = {"position embeddings", "segment embeddings", "embedding norm", "block norms", "final norm", "MLM norm"}
NOT_COPIED |= {"distance bias", "query and key norms"}
"""The components that no product reads, nor the token embeddings where a decoder of its own stands beside them."""


@dataclass(frozen=True)
class Memory:
    """Bytes of tensors alive at the peak, by part, and the moment of the peak.

    `weights` hold a teacher's too. `weight_copies` are the bf16 copies of the weights that autocast keeps until the backward
    pass is over. `workspace` is what the peak needs above the parts that are stored: logits and their gradient, or gradients on
    their way.
    The process itself (interpreter, libraries, CUDA context) is not in it.
    """

    moment: str
    weights: int
    gradients: int
    optimiser: int
    weight_copies: int
    activations: int
    workspace: int

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by part, in the order in which they come to be; they add up to `total`."""
        names = ("weights", "gradients", "optimiser", "weight_copies", "activations", "workspace")
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.parts.values())

    def to_dict(self) -> dict[str, object]:
        """The parts in bytes, their total and the moment of the peak, as plain values."""
        sizes = {f"{name}_bytes": size for name, size in self.parts.items()}
        return {**sizes, "total_bytes": self.total, "moment": self.moment}


@dataclass(frozen=True)
class TrainingStep:
    """What one optimiser step works on: B sequences of S tokens on this device, K of each masked, in a precision.

    `validation_predictions` are the masked positions of a validation sequence, as many as in training where it is None. `muon`
    is the precision in which Muon orthogonalises the matrices of the blocks, None where all is AdamW's.
    Attention is fused everywhere but on CPUs with dropout, in bf16 or where a bias by distance is learned; there it keeps the
    S·S probabilities. `ranks` share the batch by DDP, whose buckets hold the gradients once more. A step that is `graphed` (a
    CUDA graph) keeps what it works in. A `teacher` predicts the masked positions first.
    """

    batch: int
    sequence_length: int
    predictions: int
    precision: Precision = "fp32"
    dropout: float = 0.0
    device: Device = "cpu"
    ranks: int = 1
    graphed: bool = False
    teacher: Architecture | None = None
    validation_predictions: int | None = None
    muon: Precision | None = None

    @property
    def validation(self) -> TrainingStep:
        """What validation works on at a time: twice the sequences, with masks of its own."""
        masked = self.predictions if self.validation_predictions is None else self.validation_predictions
        return replace(self, batch=2 * self.batch, predictions=masked)

    @property
    def tokens(self) -> int:
        """N = B·S."""
        return self.batch * self.sequence_length

    @property
    def masked(self) -> int:
        """M = B·K."""
        return self.batch * self.predictions

    @property
    def item(self) -> int:
        """Bytes of a number in the matrix products, a: 4 in fp32, 2 in bf16."""
        return itemsize(self.precision)

    @property
    def fused_attention(self) -> bool:
        """Whether attention without a learned bias runs without keeping its S·S probabilities."""
        return self.device == "cuda" or (not self.dropout and self.precision == "fp32")


def training_memory(architecture: Architecture, step: TrainingStep) -> Memory:
    """Memory of training at its peak: stored parts, and the workspace of the moment that needs the most.

    Stored, with P parameters and N = B·S tokens, in bytes (a = 4 in fp32, 2 in bf16 autocast): weights 4P with what positions
    bring that is not learned (`position_bytes`), gradients 4P, two moments 8P (of Muon's matrices one), activations (see
    `activation_bytes`), and in bf16 the copies 2P of the products' weights. With M = B·K masked positions the moments are
    - loss: all that is stored, the last step's gradients among it, logits and (log-)probabilities 8MV, and in bf16 what the
      encoder gives, 4MH (on CUDA aMH);
    - last layer's forward pass: all that is stored but for the head's activations, what the last norm makes, 4MH (on CUDA aMH),
      and in post-norm what the FFN gives, aMH, and in bf16 what the two sublayers began with, 4NH + 4MH;
    - gradient of the loss (on CUDA; on a CPU it takes the place of the probabilities): the old gradients are gone,
      log-probabilities and two gradients of them 12MV;
    - backward pass of the last layer and of the one before: activations, the decoder's gradient 4VE, and gradients on their way
      through the layer (`_layer_backward`);
    - gradient of the token table: gradients whole, its two contributions and their sum, so 8VE beside (tied only);
    - validation, at 2B sequences with M' masked positions: logits and log-probabilities 8M'V, or before them the forward pass
      (`_forward_activations`) with the copies of the weights; gradients and activations gone, but beside the largest of the
      other moments where steps are graphed.
    With Muon, at a a number in the precision it works in, there is
    - step of the matrices: all weights, gradients and momenta, with the matrices of one shape and what orthogonalises them
      (`_orthogonalised_numbers`).
    A teacher, with weights 4P' of its own, adds to the loss its logits, both log-probabilities, its probabilities, the
    difference and their product, less the probabilities of the words, which come later: 20MV, in bf16 22MV; and a moment before
    the student's forward pass,
    - lesson: the last step's gradients, with the teacher's forward pass (`_forward_activations`) or its logits, 4MV.

    Convention: tensors alive in PyTorch's allocator from the second step on, activations not recomputed, by torch's own kernels
    (fused ones keep less); Lightning frees the gradients between forward and backward pass and before validation. Source:
    autograd's saved tensors, which tests/counting/test_memory.py
    measures.
    """
    count = parameters(architecture).parameters
    weights, gradients = FLOAT * count, FLOAT * count * (2 if step.ranks > 1 else 1)
    teacher = 0 if step.teacher is None else FLOAT * parameters(step.teacher).parameters + position_bytes(step.teacher)
    more = teacher + position_bytes(architecture)
    moments_of_weights = 2 * weights - (FLOAT * _block_matrices(architecture) if step.muon else 0)
    fixed = weights + moments_of_weights + more
    copies, kept = _copied_weights(architecture, step), activation_bytes(architecture, step)
    logits = FLOAT * step.masked * architecture.vocabulary
    table = FLOAT * architecture.vocabulary * architecture.table_width
    bf16_logits = logits // 2 if step.precision == "bf16" else 0
    output = _stream(step) * step.masked * architecture.width if step.precision == "bf16" else 0
    moments = {
        "forward pass of the last layer": fixed + gradients + copies + kept + _last_forward(architecture, step),
        "loss": fixed + gradients + copies + kept + output + 2 * logits,
        "gradient of the loss": fixed + copies + kept + (3 if step.device == "cuda" else 1) * logits,
        "backward pass of the last layer": fixed + copies + kept + table + _layer_backward(architecture, step, last=True),
        "backward pass of the layer before": fixed + copies + kept + table + _layer_backward(architecture, step, last=False),
        "gradient of the token table": fixed + gradients + (2 * table if architecture.tied_decoder else 0),
    }
    if step.muon is not None:
        moments["step of the matrices"] = fixed + gradients + itemsize(step.muon) * _orthogonalised_numbers(architecture)
    if step.teacher is not None:
        moments["loss"] += 5 * logits + bf16_logits
        moments["lesson"] = fixed + gradients + max(_forward_activations(step.teacher, step), logits)
    validated = FLOAT * step.validation.masked * architecture.vocabulary
    forward = copies + _forward_activations(architecture, step.validation)
    moments["validation"] = (max(moments.values()) if step.graphed else fixed) + max(2 * validated, forward)
    moment = max(moments, key=lambda name: moments[name])
    workspace = moments[moment] - fixed - gradients - copies - kept
    return Memory(moment, weights + more, gradients, moments_of_weights, copies, kept, workspace)


def _block_matrices(architecture: Architecture) -> int:
    """Numbers in the matrices of the blocks, G·(4·H² + 2·H·F), in a gated FFN 3·H·F."""
    a = architecture
    return a.groups * (4 * a.width**2 + matrices(a) * a.width * a.ffn)


def _orthogonalised_numbers(architecture: Architecture) -> int:
    """Numbers alive while Muon orthogonalises the matrices of one shape, at their most (see study.model.muon).

    Of N matrices of S by C numbers, S the shorter side, they are X and what it becomes 2·N·S·C with a product N·S², or X with
    two matrices N·S² before that, where C is half as long again as S with five: 4G matrices have H by H numbers, those of the
    FFN H by F, of which the inner ones, one or if gated two a layer, stand the other way round than the outer one.
    """
    a, found = architecture, []
    stacks = {(a.width, a.width): 4}
    for sides, count in (((a.ffn, a.width), matrices(a) - 1), ((a.width, a.ffn), 1)):
        stacks[sides] = stacks.get(sides, 0) + count
    for sides, count in stacks.items():
        shorter, longer = sorted(sides)
        whole, square = a.groups * count * shorter * longer, a.groups * count * shorter**2
        found.append(max(2 * whole + square, whole + (5 if longer >= 1.5 * shorter else 2) * square))
    return max(found)


def activation_bytes(architecture: Architecture, step: TrainingStep) -> int:
    """Activations that autograd keeps for the backward pass, in bytes.

    With N = B·S tokens, M = B·K masked positions and a = 4 in fp32, 2 in bf16 autocast (norms' inputs are counted in fp32,
    though a CUDA device keeps its residual stream in a); the last layer works at the masked positions alone, so that there R is
    M, and N in the others:
    - every norm's input and two statistics, 4H + 8 a token (of RMSNorm 4H + 4, on a CPU 8H + 4): of two norms a layer on R
      tokens, in pre-norm that before the last layer's attention on N + M; of that of the embeddings, of width E, and pre-norm's
      last on M; where embeddings are projected, aNE more, what the projection reads;
    - each layer's product inputs: to key and value aNH, to the FFN aRH, inner size before and after GELU 2aRF (after ReLU alone
      aRF; where the FFN is gated 4aRF: both halves, the activated one and the product), attention's output aRH, and the last
      layer's to the query aMH;
    - attention: key and value 2aNH, query aRH, and where it is fused a log-sum-exp 4AR, with a bias by distance a·A·S², in the
      last layer one for each masked position, a·A·S·M; otherwise the probabilities a·A·S·R, with dropout its mask and its
      result too, 3a·A·S·R; with rotary positions the key as it was turned, aNH, and the query beside that before, but in the
      last layer, which keeps what turned its queries, aM·H/A. Where attention is not fused, with one head or one sequence
      alone, products take key and value as they lie in one tensor, with the query before it was scaled but in the last layer;
      with more of both, no tensor is kept beside the one that a product reads;
    - norms of queries and keys: what they read and the statistics of each head, (N + R)·(aH + 8A), and what they give in place
      of what they read; of RMSNorm and on CUDA they read a copy in fp32 where products are in bf16;
    - dropout: two masks of RH a layer and one of NE, of a byte each on CUDA, of the numbers' own size on CPU;
    - the head: M·(aH + 3aE + 8); token ids before and after masking, with positions and labels 16N + 16M.
    """
    a, n, embedding = architecture, step.tokens, architecture.table_width
    norms = n * a.norms_embeddings * _norm_activations(a, embedding, step)
    if a.skips_first_norm:
        norms -= (n + step.masked if a.depth == 1 else n) * _norm_activations(a, a.width, step)
    projected = n * step.item * embedding if a.embedding_width is not None else 0
    mask = n * embedding * (1 if step.device == "cuda" else FLOAT) if step.dropout else 0
    token_ids = 2 * TOKEN * (n + step.masked)
    layers = (a.depth - 1) * _layer_activations(a, step, last=False) + _layer_activations(a, step, last=True)
    return norms + projected + mask + token_ids + layers + _head_activations(a, step)


def _layer_activations(architecture: Architecture, step: TrainingStep, last: bool) -> int:
    """What autograd keeps of the last layer, with pre-norm's last norm, or of another (see activation_bytes)."""
    a, h, n, item = architecture, architecture.width, step.tokens, step.item
    rows = step.masked if last else n
    normed = 2 * rows + (n + rows if last and a.norm == "pre" else 0)
    read = item * (n * h + rows * ((3 if last else 2) * h + _inner_kept(a) * a.ffn))
    masks = 2 * rows * h * (1 if step.device == "cuda" else item) if step.dropout else 0
    return normed * _norm_activations(a, h, step) + _attention_activations(a, step, last) + read + masks


def _attention_activations(architecture: Architecture, step: TrainingStep, last: bool) -> int:
    """What of that lies between the products before and after attention.

    The norms of queries and keys keep what the product made, which is not counted again, or a copy of it in fp32.
    """
    a, h, n, item = architecture, architecture.width, step.tokens, step.item
    rows = step.masked if last else n
    copied = step.precision == "bf16" and (step.device == "cuda" or a.norm_kind == "rms")
    kept_by_norms = a.query_key_norm and not copied
    remade = (a.rotary or a.query_key_norm) and not kept_by_norms
    keys, queries = n * (2 + remade), rows
    if _is_fused(a, step):
        queries += rows if remade and not last else 0
        added = _bias_bytes(a, rows if last else step.sequence_length, step.sequence_length, item)
        weighed = FLOAT * rows * a.heads + added
    else:
        if a.heads > 1 and step.batch > 1:
            keys = n * (2 + kept_by_norms)
        elif not last and not kept_by_norms:
            queries += rows
        weighed = item * rows * a.heads * step.sequence_length * (3 if step.dropout else 1)
    turns = item * rows * a.head_width if a.rotary and last else 0
    normed = _norm_activations(a, a.head_width, step, FLOAT if copied else item)
    norms = (n + rows) * a.heads * normed if a.query_key_norm else 0
    return item * h * (keys + queries) + weighed + turns + norms


def inference_memory(architecture: Architecture, batch: int, sequence_length: int, precision: Precision = "fp32") -> Memory:
    """Memory of the encoder's forward pass without gradients at its peak: hidden states of every token, no head.

    With N = B·S and a bytes a number (weights too: a bf16 encoder is stored in bf16): weights a·parameters_encoder, token ids
    8N, and the wider sublayer: attention holds its input, query, key, value, their mix and its product 6aNH + 4AN, the FFN
    holds the layer's input, its own, and the inner size before and after GELU aN(2H + 2F), where it is gated both halves, the
    activated one and the product aN(2H + 4F); pre-norm holds aNH more. With rotary
    positions attention holds query and key as they were turned, too, 2aNH, or as they were normed, and a bias by distance adds
    a·A·S². Attention is taken as fused, which it is everywhere but in bf16 on a CPU.
    """
    a, h, n, item = architecture, architecture.width, batch * sequence_length, itemsize(precision)
    attention = n * ((6 + _remade(a)) * item * h + FLOAT * a.heads) + _bias_bytes(a, sequence_length, sequence_length, item)
    feed_forward = n * item * (2 * h + _inner_alive(a) * a.ffn)
    wider = "attention" if attention > feed_forward else "feed-forward"
    normed = n * item * h if a.norm == "pre" else 0
    alive = max(attention, feed_forward) + normed + TOKEN * n
    weights = item * parameters(a).parameters_encoder + position_bytes(a, precision)
    return Memory(f"{wider} of a block", weights, 0, 0, 0, alive, 0)


def position_bytes(architecture: Architecture, precision: Precision = "fp32") -> int:
    """Bytes of what positions bring that is not learned.

    Rotary ones have the cosines and sines by which half the numbers of a head are turned, a·P·H/A; ALiBi a number for each
    layer, head and signed distance, a·L·A·(2·P − 1).
    """
    a = architecture
    angles = a.positions * a.head_width if a.rotary else 0
    biases = a.groups * a.heads * a.biased_distances if a.distance_bias == "alibi" else 0
    return itemsize(precision) * (angles + biases)


def _remade(architecture: Architecture) -> int:
    """How many tensors as large as the residual stream a block makes of query and key where it norms or turns them."""
    return 2 if architecture.rotary or architecture.query_key_norm else 0


def memory_of(architecture: Architecture, batch: int, sequence_length: int, precision: Precision) -> dict[str, Memory]:
    """Memory of training (BERT's 15% of positions masked, no dropout) and of inference, for accounts without a run.

    Raises InputError where the batch is empty or the architecture has fewer positions than the length.
    """
    if batch < 1:
        raise InputError.at("--batch", f"{batch} is below the least allowed, 1")
    if not 1 <= sequence_length <= architecture.positions:
        raise InputError.at("--sequence-length", f"{sequence_length} is not between 1 and positions {architecture.positions}")
    step = TrainingStep(batch, sequence_length, masked_positions(sequence_length, MASKING_RATE), precision)
    return {
        "training": training_memory(architecture, step),
        "inference": inference_memory(architecture, batch, sequence_length, precision),
    }


def itemsize(precision: Precision) -> int:
    """Bytes of a number: 4 in fp32, 2 in bf16."""
    return 2 if precision == "bf16" else FLOAT


def _forward_activations(architecture: Architecture, step: TrainingStep) -> int:
    """What a forward pass to the masked positions without gradients holds at its widest: of several layers, one of all tokens.

    In fp32 that is what inference holds. In bf16 the residual stream stays in fp32, so attention holds its input 4NH beside
    query, key, value, their mix and its product 5aNH + 4AN, on CPU scores and probabilities 2a·A·S·N in place of the last, with
    a bias by distance in both precisions; the FFN holds 8NH, and the inner size before and after GELU 2aNF. Pre-norm holds 4NH
    more.
    """
    a, h, n, item = architecture, architecture.width, step.tokens, step.item
    if a.depth == 1:
        return _only_layer_forward(a, step)
    if step.precision == "fp32":
        return inference_memory(a, step.batch, step.sequence_length).activations
    attention = n * (FLOAT * h + (5 + _remade(a)) * item * h + _weighed(a, step))
    attention += _bias_bytes(a, step.sequence_length, step.sequence_length, FLOAT + item)
    feed_forward = n * (2 * FLOAT * h + _inner_alive(a) * item * a.ffn)
    normed = FLOAT * n * h if a.norm == "pre" else 0
    return max(attention, feed_forward) + normed + TOKEN * n


def _only_layer_forward(architecture: Architecture, step: TrainingStep) -> int:
    """What `_forward_activations` says of one layer alone, which works at the masked positions.

    Attention holds its input 4NH, in pre-norm normed too, 4NH, key and value 2aNH, in bf16 the copy of one that a product
    reads, or the normed key, aNH, with rotary positions the turned key, its halves beside it, 2aNH, and of the masked positions
    their input 4MH, query and mix 2aMH, what weighs them and what a bias by distance adds, 4·A·S·M; the FFN holds 4NH + 8MH,
    and its inner sizes.
    """
    a, h, n, m, item = architecture, architecture.width, step.tokens, step.masked, step.item
    normed = a.norm == "pre" and not a.skips_first_norm
    bf16 = step.precision == "bf16"
    pairs = 4 if a.rotary else 3 if bf16 or a.query_key_norm else 2
    attention = n * h * (FLOAT * (1 + normed) + pairs * item) + m * ((FLOAT + 2 * item) * h + _weighed(a, step))
    attention += _bias_bytes(a, m, step.sequence_length, FLOAT + item if bf16 else FLOAT)
    feed_forward = FLOAT * n * h + m * (2 * FLOAT * h + _inner_alive(a) * item * a.ffn)
    return max(attention, feed_forward) + TOKEN * n


def _weighed(architecture: Architecture, step: TrainingStep) -> int:
    """Bytes by which attention without gradients weighs what one token sees: where it is fused, a log-sum-exp a head."""
    if replace(step, dropout=0.0).fused_attention:
        return FLOAT * architecture.heads
    return 2 * step.item * architecture.heads * step.sequence_length


def _is_fused(architecture: Architecture, step: TrainingStep) -> bool:
    """Whether attention with gradients keeps no S·S probabilities: on a CPU it keeps them where a bias is learned."""
    return step.fused_attention and (step.device == "cuda" or architecture.distance_bias != "learned")


def _bias_bytes(architecture: Architecture, queries: int, keys: int, item: int) -> int:
    """Bytes of what a bias by distance adds to the scores: A·S² numbers for all sequences alike, A·M·S for M queries."""
    return item * architecture.heads * queries * keys if architecture.distance_bias != "none" else 0


def _head_activations(architecture: Architecture, step: TrainingStep) -> int:
    """Activations of the MLM head on M = B·K positions: what its norm keeps, and M·(aH + 2aE) around it."""
    a, embedding = architecture, architecture.table_width
    products = step.item * (a.width + 2 * embedding)
    return step.masked * (products + _norm_activations(a, embedding, step, step.item))


def _norm_activations(architecture: Architecture, width: int, step: TrainingStep, item: int = FLOAT) -> int:
    """Bytes that a norm keeps of each token: its input of `item` bytes a number and two statistics.

    RMSNorm reads fp32 and has one statistic; on a CPU torch has no kernel for it, and keeps what is not scaled yet, too.
    """
    if architecture.norm_kind == "layer":
        return item * width + 2 * FLOAT
    return FLOAT * width * (2 if step.device == "cpu" else 1) + FLOAT


def _inner_kept(architecture: Architecture) -> int:
    """How many tensors of the inner size an FFN keeps for the backward pass."""
    return {"relu": 1, "gelu": 2}.get(architecture.activation, 4)


def _inner_alive(architecture: Architecture) -> int:
    """How many tensors of the inner size an FFN holds at its widest, going forward."""
    return 4 if architecture.gated else 2


def _copied_weights(architecture: Architecture, step: TrainingStep) -> int:
    """Autocast's bf16 copies of the weights of the products, one for each layer that uses them: all but NOT_COPIED."""
    if step.precision == "fp32":
        return 0
    a = architecture
    left_out = NOT_COPIED if a.tied_decoder else NOT_COPIED | {"token embeddings"}
    unshared = parameters(a.model_copy(update={"layer_groups": None})).components
    return step.item * sum(component.count for component in unshared if component.name not in left_out)


def _stream(step: TrainingStep) -> int:
    """Bytes of a number of what a layer hands on, 4, on CUDA a."""
    return step.item if step.device == "cuda" else FLOAT


def _last_forward(architecture: Architecture, step: TrainingStep) -> int:
    """What the forward pass of the last layer holds at its end beyond what is stored, less what the head will store.

    What sublayers begin with is stored in pre-norm, by the norms, and in fp32, by the products; these store the copy in bf16.
    """
    h, stream = architecture.width, _stream(step)
    given = 0 if architecture.norm == "pre" else step.item * step.masked * h
    begun = stream * (step.tokens + step.masked) * h if architecture.norm == "post" and step.precision == "bf16" else 0
    return stream * step.masked * h + given + begun - _head_activations(architecture, step)


def _layer_backward(architecture: Architecture, step: TrainingStep, last: bool) -> int:
    """What the backward pass of the last layer, or of the one before, holds at its widest beyond the activations.

    Below zero where it frees more: by then the head's activations are gone, and before the last layer also those of the last,
    whose weights' gradients are there instead. Of R tokens, the FFN brings the gradients of the inner size, aRF (2aRF, but for
    GELU, whose gradient takes the place of the incoming one), and of the outer weights, 4HF, and in bf16 a copy of the incoming
    one, aRH. Attention that is not fused comes when the FFN's activations and those around it, 2aRF + 4aRH (ReLU's aRF, gated
    ones 4aRF), are freed: the gradients of the FFN's weights, 8HF (gated 12HF), of the values, aNH, and of the probabilities,
    4·A·S·R (in bf16 twice: of the probabilities and of the scores; so it is in fp32 without dropout, where it is not fused for
    the sake of a learned bias, whose own gradient takes the place of two where S is above R, 8·A·S²). On CUDA torch's kernel
    gives a learned bias a gradient of its own in each sequence, a·A·S·R.
    """
    a, h, item = architecture, architecture.width, step.item
    if a.depth == 1 and not last:
        return 0
    rows = step.masked if last else step.tokens
    copy = rows * item * h if step.precision == "bf16" else 0
    widest = rows * item * a.ffn * (1 if a.activation == "gelu" else 2) + FLOAT * h * a.ffn + copy
    if not step.fused_attention or a.distance_bias == "learned":
        probabilities = FLOAT * rows * a.heads * step.sequence_length
        if step.device == "cuda":
            probabilities = item * rows * a.heads * step.sequence_length
        elif step.fused_attention:
            probabilities = 2 * FLOAT * max(rows, step.sequence_length) * a.heads * step.sequence_length
        values = item * step.tokens * h
        freed = rows * item * (_inner_kept(a) * a.ffn + 4 * h)
        widest = max(widest, probabilities + values + matrices(a) * FLOAT * h * a.ffn - freed)
    if not last:
        copied = step.item if step.precision == "bf16" else 0
        widest += (FLOAT - copied) * h * (4 * h + matrices(a) * a.ffn) - _layer_activations(a, step, last=True)
    return widest - _head_activations(a, step)
