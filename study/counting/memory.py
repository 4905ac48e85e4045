"""Memory of training and inference by part, in bytes, in integer arithmetic without torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from study.base.errors import InputError
from study.counting.architecture import Architecture
from study.counting.components import OF_GENERATOR, matrices
from study.counting.layer_losses import NO_LOSSES, LayerLosses
from study.counting.parameters import MASKING_RATE, masked_positions, parameters, relative_rows

Precision = Literal["fp32", "bf16"]
AskedPrecision = Literal[Precision, "auto"]
"""A precision, or the best for the device (study.training.execution.resolve_precision)."""

WeightFormat = Literal[Precision, "int8"]
"""How inference holds weights; int8 has a byte per weight of a matrix, activations in fp32 (study.model.stored_weights)."""

Device = Literal["cpu", "cuda"]

FLOAT, TOKEN = 4, 8
"""Bytes of a float32 and of a token id (int64)."""

NOT_COPIED = {"position embeddings", "segment embeddings", "embedding norm", "block norms", "final norm", "MLM norm"}
NOT_COPIED |= {"distance bias", "query and key norms", "relative position embeddings", "relative position norm"}
NOT_COPIED |= {"mask decoder positions"}
"""Components outside matrix products; the token embeddings too if the decoder is untied."""


@dataclass(frozen=True)
class Memory:
    """Bytes of tensors alive at the peak, by part, with its moment.

    `weights` include a teacher's. `weight_copies` are autocast's bf16 copies, kept until the backward pass ends. `workspace` is
    the peak's need beyond the stored parts: logits and their gradient, or gradients in flight. The process (interpreter,
    libraries, CUDA context) is excluded.
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
        """Bytes by part, in order of creation; they add up to `total`."""
        names = ("weights", "gradients", "optimiser", "weight_copies", "activations", "workspace")
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.parts.values())

    def to_dict(self) -> dict[str, object]:
        """Return the parts, total and moment as plain values."""
        sizes = {f"{name}_bytes": size for name, size in self.parts.items()}
        return {**sizes, "total_bytes": self.total, "moment": self.moment}


@dataclass(frozen=True)
class TrainingStep:
    """The input of one optimiser step: B sequences of S tokens on this device, K of each masked, in a precision.

    `validation_predictions` are the masked positions of a validation sequence, by default as in training. `muon` is the
    precision in which Muon orthogonalises the blocks' matrices, None for AdamW alone. Attention is fused except on CPUs with
    dropout, in bf16 or with a learned bias by distance; there it keeps the S·S probabilities. `ranks` share the batch by DDP,
    whose buckets copy the gradients. A `graphed` step (a CUDA graph) keeps its workspace. A `teacher` predicts first; `losses`
    between its layers and the student's need both encoders at every token.
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
    losses: LayerLosses = NO_LOSSES
    validation_predictions: int | None = None
    muon: Precision | None = None

    @property
    def validation(self) -> TrainingStep:
        """The input of a validation step: twice the sequences, with their own masks."""
        masked = self.predictions if self.validation_predictions is None else self.validation_predictions
        return replace(self, batch=2 * self.batch, predictions=masked, losses=NO_LOSSES)

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
        """Whether attention without a learned bias keeps no S·S probabilities."""
        return self.device == "cuda" or (not self.dropout and self.precision == "fp32")


def training_memory(architecture: Architecture, step: TrainingStep) -> Memory:
    """Peak memory of training: stored parts, and the largest workspace of any moment.

    Stored, in bytes, with P parameters and N, M and a of TrainingStep: weights 4P and unlearned position tensors
    (`position_bytes`), gradients 4P, two moments 8P (one for Muon's matrices), activations (`activation_bytes`), and in bf16
    the copies 2P of the products' weights. The moments are

    - loss: all stored parts, including the last step's gradients, logits and (log-)probabilities 8MV, and in bf16 the encoder's
      output, 4MH (on CUDA aMH);
    - last layer's forward pass: all stored parts except the head's activations, the last norm's output, 4MH (on CUDA aMH), and
      in post-norm the FFN's output, aMH, and in bf16 the sublayers' inputs, 4NH + 4MH;
    - gradient of the loss (on CUDA; on a CPU it replaces the probabilities): without old gradients, log-probabilities and two
      gradients of them 12MV;
    - backward pass of the last layer and of the one before: activations, the decoder's gradient 4VE (4VH if it reads H), and
      gradients in flight (`_layer_backward`);
    - gradient of the token table: whole gradients, its two contributions and their sum, so 8VE more (tied only);
    - validation, at 2B sequences with M' masked positions: logits and log-probabilities 8M'V, or before them the forward pass
      (`_forward_activations`) with weight copies; without gradients and activations, but on top of the largest other moment if
      steps are graphed;
    - with Muon, step of the matrices: all weights, gradients and momenta, and the workspace for the matrices of one shape
      (`_orthogonalised_numbers`) in its precision.

    A teacher, with its own weights 4P', adds to the loss its logits, both log-probabilities, its probabilities, the difference
    and their product, less the later probabilities of the words: 20MV, in bf16 22MV; and before the student's forward pass

    - forward pass of the teacher: the last step's gradients, with its activations (`_forward_activations`) or its logits, 4MV.

    Losses between layers keep `_matched_bytes`, train a projection, run the last layer at all tokens, and add the moments

    - losses between layers: all stored parts except the head's activations, and `_taught_bytes`;
    - gradient of the losses between layers: without gradients, that of scores and, before the factor, once more, 8·R·S·N.

    Convention: tensors alive in PyTorch's allocator from the second step on, without recomputation, by torch's own kernels
    (fused ones keep less); Lightning frees the gradients between forward and backward pass and before validation. Source:
    autograd's saved tensors, measured in tests/counting/test_memory.py.
    """
    if architecture.generator is not None:
        return _detection_memory(architecture, architecture.generator, step)
    matched, projected = _matched_bytes(architecture, step), _projection_parameters(architecture, step)
    count = parameters(architecture).parameters + projected
    weights, gradients = FLOAT * count, FLOAT * count * (2 if step.ranks > 1 else 1)
    teacher = 0 if step.teacher is None else FLOAT * parameters(step.teacher).parameters + position_bytes(step.teacher)
    more = teacher + position_bytes(architecture)
    moments_of_weights = 2 * weights - (FLOAT * _block_matrices(architecture) if step.muon else 0)
    fixed = weights + moments_of_weights + more
    copies = _copied_weights(architecture, step) + (step.item * projected if step.precision == "bf16" else 0)
    kept = activation_bytes(architecture, step) + matched
    logits = FLOAT * step.masked * architecture.vocabulary
    table = FLOAT * architecture.vocabulary * architecture.table_width
    decoder = FLOAT * architecture.vocabulary * architecture.mlm_width
    bf16_logits = logits // 2 if step.precision == "bf16" else 0
    output = _stream(step) * _encoded(architecture, step) * architecture.width if step.precision == "bf16" else 0
    moments = {
        "forward pass of the last layer": fixed + gradients + copies + kept + _last_forward(architecture, step),
        "loss": fixed + gradients + copies + kept + output + 2 * logits,
        "gradient of the loss": fixed + copies + kept + (3 if step.device == "cuda" else 1) * logits,
        "backward pass of the last layer": fixed + copies + kept + decoder + _layer_backward(architecture, step, last=True),
        "backward pass of the layer before": fixed + copies + kept + decoder + _layer_backward(architecture, step, last=False),
        "gradient of the token table": fixed + gradients + (2 * table if architecture.tied_decoder else 0),
    }
    if step.muon is not None:
        moments["step of the matrices"] = fixed + gradients + itemsize(step.muon) * _orthogonalised_numbers(architecture)
    if step.teacher is not None:
        moments["loss"] += 5 * logits + bf16_logits
        moments["forward pass of the teacher"] = fixed + gradients + max(_forward_activations(step.teacher, step), logits)
    if step.losses:
        without_head = fixed + copies + kept - _head_activations(architecture, step)
        moments["losses between layers"] = without_head + gradients + _taught_bytes(architecture, step)
        gradient = 2 * FLOAT + (step.item if step.precision == "bf16" else 0)
        moments["gradient of the losses between layers"] = without_head + _score_bytes(architecture, step, gradient)
    stored = Memory("", weights + more, gradients, moments_of_weights, copies, kept, 0)
    return _at_the_peak(stored, moments, architecture, step)


def _at_the_peak(stored: Memory, moments: dict[str, int], architecture: Architecture, step: TrainingStep) -> Memory:
    """Return the stored parts with the largest of all moments, of which validation is one, and its workspace."""
    logits = FLOAT * step.validation.masked * architecture.vocabulary
    forward = stored.weight_copies + _forward_activations(architecture, step.validation)
    before = max(moments.values()) if step.graphed else stored.weights + stored.optimiser
    moments = moments | {"validation": before + max(2 * logits, forward)}
    moment = max(moments, key=lambda name: moments[name])
    return replace(stored, moment=moment, workspace=moments[moment] - stored.total)


def _detection_memory(detecting: Architecture, generator: Architecture, step: TrainingStep) -> Memory:
    """`training_memory` of an encoder that detects the tokens that its generator replaced.

    Stored: weights, gradients and moments of all unique tensors, and the activations of both encoders, of the detecting one at
    all N tokens, with the generator's probabilities 4MV and the replaced tokens and the judgement of each, 8N. The moments are

    - forward pass and backward passes of the detecting encoder's last layers: as there, at all tokens, the latter two without
      the decoder's gradient;
    - detection: all stored parts, including the last step's gradients;
    - gradient of the generator's loss: without activations of the detecting encoder, with its gradients 4P' and the token
      table's 4VE;
    - gradient of the token table: as there, or if more with the generator's activations in place of its gradients;
    - validation at 2B sequences, and step of the matrices: as there.
    """
    total = parameters(detecting).parameters
    positions = position_bytes(detecting) + position_bytes(generator)
    weights, gradients = FLOAT * total, FLOAT * total * (2 if step.ranks > 1 else 1)
    matrices_of_both = (_block_matrices(detecting) + _block_matrices(generator)) if step.muon else 0
    moments_of_weights = 2 * weights - FLOAT * matrices_of_both
    fixed = weights + moments_of_weights + positions
    logits = FLOAT * step.masked * detecting.vocabulary
    table = FLOAT * detecting.vocabulary * detecting.table_width
    its_copies, its_kept = _copied_weights(generator, step), activation_bytes(generator, step)
    copies = its_copies + _copied_weights(detecting, step)
    kept = its_kept + logits + activation_bytes(detecting, step)
    partial = fixed + FLOAT * parameters(detecting).parameters_encoder + its_copies + its_kept
    stored = fixed + copies + kept
    moments = {
        "forward pass of the last layer": stored + gradients + _last_forward(detecting, step),
        "detection": stored + gradients,
        "backward pass of the last layer": stored + _layer_backward(detecting, step, last=True),
        "backward pass of the layer before": stored + _layer_backward(detecting, step, last=False),
        "gradient of the generator's loss": partial + table + (3 if step.device == "cuda" else 1) * logits,
        "gradient of the token table": max(fixed + gradients, partial) + (1 + detecting.tied_decoder) * table,
    }
    if step.muon is not None:
        numbers = max(_orthogonalised_numbers(each) for each in (detecting, generator))
        moments["step of the matrices"] = fixed + gradients + itemsize(step.muon) * numbers
    parts = Memory("", weights + positions, gradients, moments_of_weights, copies, kept, 0)
    return _at_the_peak(parts, moments, detecting, step)


def _block_matrices(architecture: Architecture) -> int:
    """Numbers in the matrices of the blocks, G·(4·H² + 2·H·F), in a gated FFN 3·H·F, in DeBERTa v1 G·2·H² more."""
    return architecture.groups * _layer_matrices(architecture)


def _layer_matrices(architecture: Architecture) -> int:
    return sum(count * outputs * inputs for (outputs, inputs), count in _matrix_shapes(architecture).items())


def _matrix_shapes(architecture: Architecture) -> Counter[tuple[int, int]]:
    """Return the shapes of a layer's matrices, outputs by inputs, with the number of each.

    BERT's attention has 4 of H by H, DeBERTa v1's 6, and each FFN of H by F two, if gated three. With a bottleneck of width B,
    attention has 3 of B by B, with the values 3 read H, and one returns to it.
    """
    a, inner = architecture, architecture.block_width
    shapes: Counter[tuple[int, int]] = Counter()
    if a.bottleneck_width is None:
        shapes[(a.width, a.width)] += 6 if a.position_encoding == "disentangled" else 4
    else:
        shapes.update({(inner, inner): 3})
        shapes.update({(inner, a.width): 3})
        shapes.update({(a.width, inner): 1})
    shapes.update({(a.ffn, inner): a.ffn_stack * (matrices(a) - 1)})
    shapes.update({(inner, a.ffn): a.ffn_stack})
    return shapes


def _orthogonalised_numbers(architecture: Architecture) -> int:
    """Peak numbers alive while Muon orthogonalises the matrices of one shape (study.model.optimization.Muon).

    N matrices of S by C numbers, S the shorter side, take X and its successor 2·N·S·C with a product N·S², or before that X
    with two matrices N·S², five if C ≥ 1.5·S.
    """
    peaks, groups = [], architecture.groups
    for sides, count in _matrix_shapes(architecture).items():
        shorter, longer = sorted(sides)
        whole, square = groups * count * shorter * longer, groups * count * shorter**2
        peaks.append(max(2 * whole + square, whole + (5 if longer >= 1.5 * shorter else 2) * square))
    return max(peaks)


def activation_bytes(architecture: Architecture, step: TrainingStep) -> int:
    """Activations that autograd keeps for the backward pass, in bytes.

    N, M and a are those of TrainingStep; norms' inputs count in fp32, though CUDA keeps the residual stream in a. The last
    layer works at the masked positions alone, so R is M there and N elsewhere:

    - every norm's input and two statistics, 4H + 8 a token (RMSNorm 4H + 4, on a CPU 8H + 4): two norms per layer on R tokens,
      in pre-norm the one before the last layer's attention on N + M; the embeddings' norm, of width E, and pre-norm's last on
      M; the input of an embedding projection, aNE, of trigrams 3aNE beside a norm of width H. An affine norm keeps its input
      alone;
    - each layer's product inputs: to key and value aNH, to the FFN aRH, inner size before and after GELU 2aRF (ReLU aRF; gated
      4aRF: both halves, the activated one and the product), attention's output aRH, and the last layer's to the query aMH;
    - with N FFNs in a block their norms, inputs and inner sizes N times; with a bottleneck of width B all of this at width B,
      and norms of both inputs on N + R tokens, the input of queries and keys aNB, that of the way out aRB, its norm at width H,
      the stream aNH, in the last layer aMH more, and in bf16 a copy of the stream for each of the three products that read it;
    - attention: key and value 2aNH, query aRH, and if fused a log-sum-exp 4AR, with a bias by distance a·A·S², in the last
      layer one per masked position, a·A·S·M; otherwise the probabilities a·A·S·R, with dropout also its mask and result,
      3a·A·S·R; with rotary positions the rotated key, aNH, and the unrotated query, except in the last layer, which keeps its
      queries' rotation, aM·H/A. Unfused attention with one head or sequence reads key and value from one tensor, and except in
      the last layer keeps the unscaled query; with more of both, only the products' inputs;
    - norms of queries and keys: their inputs and each head's statistics, (N + R)·(aH + 8A), with outputs in place of the
      unnormed tensors; RMSNorm, and any norm on CUDA, reads an fp32 copy if products are in bf16;
    - disentangled attention, never fused on a CPU: query, key and value once more, (2N + R)·aH, both projections of the table
      of P rows, 2aPH, in bf16 its copy, aPH (DeBERTa v1 two), each pair's row, 8S² for all layers and 8·B·K·S in the last;
      once the normed table, 4PH (not v1);
    - a convolution: its output, aNH, with a norm's input and statistics, and in bf16 a copy of the embeddings, aNH;
    - windows: the mask, S², and in each layer that uses it 4S² (on CUDA a·S², by plain products S²), in the last B·K·S times
      that;
    - dropout: two masks of RH per layer and one of NE, of a byte each on CUDA, of the numbers' own size on CPU;
    - the head: M·(aH + 3aE + 8); token ids before and after masking, with positions and labels 16N + 16M;
    - an enhanced mask decoder: the last layer's once more, but for its input, which both passes read;
    - a pair head: the last layer also at [CLS], so M + B for M there; its input, pooled 2aBH; segments and positions 8N + 8M.
    """
    a, n, embedding = architecture, step.tokens, architecture.summed_width
    norms = n * a.norms_embeddings * _norm_activations(a, embedding, step)
    if a.skips_first_norm:
        norms -= (n + _encoded(a, step) if a.depth == 1 else n) * _norm_activations(a, a.width, step)
    projected = n * step.item * _projection_inputs(a)
    mask = n * embedding * (1 if step.device == "cuda" else FLOAT) if step.dropout else 0
    token_ids = (3 if a.pair_head else 2) * TOKEN * (n + step.masked)
    layers = (a.depth - 1) * _layer_activations(a, step, last=False) + _layer_activations(a, step, last=True)
    pooled = 2 * step.item * step.batch * a.width if a.pair_head else 0
    return (
        norms
        + projected
        + mask
        + token_ids
        + layers
        + _second_pass_activations(a, step)
        + pooled
        + _window_masks(a, step)
        + _relative_activations(a, step)
        + _head_activations(a, step)
    )


def _relative_activations(architecture: Architecture, step: TrainingStep) -> int:
    """Return what all layers share of relative positions, and the convolution beside the first."""
    a, n, h = architecture, step.tokens, architecture.width
    convolved = n * (step.item * h + _norm_activations(a, h, step)) if a.convolution_kernel else 0
    convolved += n * step.item * h if a.convolution_kernel and step.precision == "bf16" else 0
    if not a.relative:
        return convolved
    table = relative_rows(a, step.sequence_length) * h * FLOAT if a.position_encoding == "disentangled_shared" else 0
    return convolved + table + TOKEN * (step.sequence_length**2 + _encoded(a, step) * step.sequence_length)


def _window_masks(architecture: Architecture, step: TrainingStep) -> int:
    """Return the mask of windows that all local layers share, and what each makes of it."""
    a, pairs = architecture, step.sequence_length**2
    if not a.local_layers:
        return 0
    item = step.item if step.device == "cuda" else FLOAT if _is_fused(a, step) else 1
    at_last = a.is_local(a.depth - 1)
    return pairs + (a.local_layers - at_last) * item * pairs + at_last * item * _encoded(a, step) * step.sequence_length


def _encoded(architecture: Architecture, step: TrainingStep) -> int:
    """Positions at which the last layer works: the masked ones, and with a pair head each [CLS]; all if `_reads_all`."""
    return step.tokens if _reads_all(architecture, step) else step.masked + step.batch * architecture.pair_head


def _reads_all(architecture: Architecture, step: TrainingStep) -> bool:
    """Whether the last layer's output is read at every token: by losses between layers, or by a detector."""
    return bool(step.losses or architecture.generator_share)


def _projection_parameters(architecture: Architecture, step: TrainingStep) -> int:
    return 0 if step.teacher is None else step.losses.projection_parameters(architecture, step.teacher)


def _matched_bytes(architecture: Architecture, step: TrainingStep) -> int:
    """Return what losses between layers keep for the backward pass.

    Per pair of layers, hidden states of the teacher, 4NH', and of the student where nothing else keeps them, 4NH: the last
    layer's, and in bf16 post-norm's; a projection's output, 4NH', and in bf16 its input, aNH. Per pair with attention and
    product of X with Y in R heads, copies of both, 2aNH, and scores, 4·R·S·N, of attention those of both models.
    """
    if step.teacher is None or not step.losses:
        return 0
    a, t, losses, n = architecture, step.teacher, step.losses, step.tokens
    pairs, bf16 = losses.pairs(a.depth, t.depth), step.precision == "bf16"
    of_hidden = 0
    if losses.of_hidden:
        unkept = sum(one == a.depth or (bf16 and a.norm == "post") for one, _ in pairs)
        projected = (FLOAT * t.width + (step.item * a.width if bf16 else 0)) * losses.projects(a, t)
        of_hidden = len(pairs) * n * (FLOAT * t.width + projected) + unkept * n * FLOAT * a.width
    products = losses.weighs_scores + losses.relation_products
    attentions = sum(one > 0 and other > 0 for one, other in pairs) if losses.of_attention else 0
    tensors = 2 * bool(losses.attention) + (bool(losses.relations) and not losses.relation_heads) + losses.relation_products
    return of_hidden + attentions * (products * 2 * step.item * n * a.block_width + _score_bytes(a, step, FLOAT * tensors))


def _score_bytes(architecture: Architecture, step: TrainingStep, item: int) -> int:
    """Bytes of scores, by head or relation head, of `item` bytes each; none without a loss of attention."""
    heads = max(step.losses.relation_heads, architecture.heads * step.losses.weighs_scores)
    return item * heads * step.sequence_length * step.tokens if step.losses.of_attention else 0


def _taught_bytes(architecture: Architecture, step: TrainingStep) -> int:
    """Return what the losses between layers hold in their forward pass beside what they keep.

    The teacher's queries, keys and values of all matched layers, 3aNH', if rotated or normed 2aNH' more, their hidden states,
    4NH', unless kept, and of the last relations four tensors of scores.
    """
    t, losses, n = step.teacher, step.losses, step.tokens
    if t is None or not losses.of_attention:
        return 0
    layers = len({other for one, other in losses.pairs(architecture.depth, t.depth) if one and other})
    inputs = step.item * (3 + _remade(t)) * t.block_width + FLOAT * (not losses.of_hidden) * t.width
    return layers * inputs * n + _score_bytes(architecture, step, FLOAT * (4 if losses.relations else 1))


def _layer_activations(architecture: Architecture, step: TrainingStep, last: bool) -> int:
    """Activations kept for a layer; the last includes pre-norm's last norm."""
    a, h, n, item = architecture, architecture.width, step.tokens, step.item
    if last and _reads_all(a, step):
        return _layer_activations(a, step, last=False) + n * (a.norm == "pre") * _norm_activations(a, h, step)
    rows = _encoded(a, step) if last else n
    mask = rows * h * (1 if step.device == "cuda" else item) if step.dropout else 0
    if a.bottleneck_width is not None:
        return _bottleneck_activations(a, step, last) + _attention_activations(a, step, last) + mask
    sublayers = 1 + a.ffn_stack
    normed = sublayers * rows + (n + rows if last and a.norm == "pre" else 0)
    fed = a.ffn_stack * (h + _inner_kept(a) * a.ffn)
    read = item * (n * h + rows * ((2 if last else 1) * h + fed))
    return normed * _norm_activations(a, h, step) + _attention_activations(a, step, last) + read + sublayers * mask


def _second_pass_activations(architecture: Architecture, step: TrainingStep) -> int:
    """Return what an enhanced mask decoder's second pass keeps: as the last layer, whose input and last norm already count."""
    a, h, n = architecture, architecture.width, step.tokens
    if not a.enhanced_mask_decoder:
        return 0
    again = _layer_activations(a, step, last=True)
    if a.norm == "pre":
        again -= n * FLOAT * h + step.masked * _norm_activations(a, h, step)
    elif step.precision == "fp32":
        again -= n * step.item * h
    pairs = TOKEN * step.masked * step.sequence_length if a.relative else 0
    return again + pairs


def _bottleneck_activations(architecture: Architecture, step: TrainingStep, last: bool) -> int:
    """Return what a layer with a bottleneck keeps beside the inputs of attention and masks."""
    a, h, inner, n, item = architecture, architecture.width, architecture.block_width, step.tokens, step.item
    rows, bf16 = _encoded(a, step) if last else n, step.precision == "bf16"
    stream = (2 * n + rows) if bf16 else n + (rows if last else 0)
    shared = n + (rows if last or bf16 else 0)
    narrowed = item if a.norm_kind == "affine" else FLOAT
    norms = (n + rows) * _norm_activations(a, inner, step, narrowed) + rows * _norm_activations(a, h, step)
    norms += (1 + a.ffn_stack) * rows * _norm_activations(a, inner, step)
    fed = a.ffn_stack * (inner + _inner_kept(a) * a.ffn)
    return norms + item * (stream * h + shared * inner + rows * (2 * inner + fed))


def _attention_activations(architecture: Architecture, step: TrainingStep, last: bool) -> int:
    """Return the part between the products before and after attention.

    Query and key norms keep the product's output, which is not counted again, or an fp32 copy.
    """
    a, h, n, item = architecture, architecture.block_width, step.tokens, step.item
    rows = _encoded(a, step) if last else n
    copied = step.precision == "bf16" and (step.device == "cuda" or a.norm_kind == "rms")
    kept_by_norms = a.query_key_norm and not copied
    remade = (a.rotary or a.query_key_norm) and not kept_by_norms
    keys, queries = n * (2 + remade), rows
    if _is_fused(a, step):
        queries += rows if remade and not last else 0
        added = _bias_bytes(a, rows if last else step.sequence_length, step.sequence_length, item)
        weighed = FLOAT * rows * a.heads + added
        weighed += item * rows * a.heads * step.sequence_length if a.relative else 0
    else:
        if a.heads > 1 and step.batch > 1:
            keys = n * (2 + kept_by_norms)
        elif not last and not kept_by_norms:
            queries += rows
        weighed = item * rows * a.heads * step.sequence_length * (3 if step.dropout else 1)
    rotation = item * rows * a.head_width if a.rotary and last else 0
    projected = 0
    if a.relative:
        copies = (2 if a.position_encoding == "disentangled" else 1) if step.precision == "bf16" else 0
        projected = item * h * (2 * n + rows + (2 + copies) * relative_rows(a, step.sequence_length))
    normed = _norm_activations(a, a.head_width, step, FLOAT if copied else item)
    norms = (n + rows) * a.heads * normed if a.query_key_norm else 0
    return item * h * (keys + queries) + weighed + rotation + norms + projected


def inference_memory(architecture: Architecture, batch: int, sequence_length: int, precision: WeightFormat = "fp32") -> Memory:
    """Peak memory of the encoder's forward pass without gradients: every token's hidden states, no head.

    With N = B·S and a bytes a number: weights `encoder_bytes` (a bf16 encoder is stored in bf16), token ids 8N, and the wider
    sublayer. Attention holds its input, query, key, value, their mix and its product 6aNH + 4AN. The FFN
    holds the layer's input, its own, and the inner size before and after GELU aN(2H + 2F), if gated aN(2H + 4F). Within a
    bottleneck only the layer's input has width H, and the way out of it holds that input, its own product, their sum and its
    norm aN(4H + B). Pre-norm holds aNH more. Attention also holds any rotated or normed query and key, 2aNH; a bias by distance
    adds a·A·S², a window (1 + a)·S²; disentangled attention holds `_relative_alive`. Attention counts as fused, which fails
    only in bf16 on a CPU. Products of int8 hold their whole sums beside their output: with the input, 7aNH for query,
    key and value.
    """
    a, h, n, item = architecture, architecture.width, batch * sequence_length, itemsize(precision)
    inner, narrow = a.block_width, a.bottleneck_width is not None
    attention = n * (item * (h + (5 + narrow + _remade(a)) * inner) + FLOAT * a.heads) + _bias_bytes(
        a, sequence_length, sequence_length, item
    )
    attention += (1 + item) * sequence_length**2 if a.local_layers else 0
    if a.relative:
        relative = _relative_alive(a, n, n, sequence_length, item)
        attention = max(attention + item * n * a.heads * sequence_length, 4 * n * item * h + relative)
    if precision == "int8" and not narrow:
        attention = max(attention, 7 * n * item * h)
    feed_forward = n * item * (h + inner + _inner_alive(a) * a.ffn)
    widening = n * item * (4 * h + inner) * narrow
    wider = max((attention, "attention"), (feed_forward, "feed-forward"), (widening, "bottleneck"))[1]
    normed = n * item * h if a.norm == "pre" else 0
    alive = max(attention, feed_forward, widening) + normed + TOKEN * n
    weights = encoder_bytes(a, precision) + position_bytes(a, precision)
    return Memory(f"{wider} of a block", weights, 0, 0, 0, alive, 0)


def encoder_bytes(architecture: Architecture, precision: WeightFormat = "fp32") -> int:
    """Bytes of the encoder's weights, without the MLM head.

    A number takes 4 bytes in fp32 and 2 in bf16. In int8 a number of a matrix or table takes one, each of their rows has a
    scale of 4, and vectors and convolutions stay in fp32.
    """
    total = parameters(architecture).parameters_encoder
    if precision != "int8":
        return itemsize(precision) * total
    numbers, rows = _encoder_matrices(architecture)
    return numbers + FLOAT * (rows + total - numbers)


def model_bytes(architecture: Architecture, precision: WeightFormat = "fp32") -> int:
    """Bytes of the MLM model's weights, as `encoder_bytes` counts them."""
    a, count = architecture, parameters(architecture)
    head = count.parameters - count.parameters_encoder
    if precision != "int8":
        return itemsize(precision) * count.parameters
    transform, beside = 0 if a.mlm_transform == "none" else a.mlm_width, a.mlm_width - a.table_width
    places = a.positions if a.enhanced_mask_decoder else 0
    rows = transform + places + a.vocabulary * ((not a.tied_decoder) + (beside > 0))
    numbers = (transform + places) * a.width + a.vocabulary * (beside + (0 if a.tied_decoder else a.table_width))
    if a.pair_head:
        rows, numbers = rows + a.width + 2, numbers + a.width**2 + 2 * a.width
    return encoder_bytes(a, precision) + numbers + FLOAT * (rows + head - numbers)


def _encoder_matrices(architecture: Architecture) -> tuple[int, int]:
    """Return the numbers and rows of the encoder's matrices and tables."""
    a, h = architecture, architecture.width
    offsets = (a.positions if a.position_encoding == "learned" else 0) + a.segments
    blocks = sum(count * outputs for (outputs, _), count in _matrix_shapes(a).items())
    projection = _projection_inputs(a) * h
    tables = a.vocabulary * a.table_width + offsets * a.summed_width + a.relative_positions * h
    rows = a.vocabulary + offsets + (h if projection else 0) + a.relative_positions + a.groups * blocks
    return tables + projection + _block_matrices(a), rows


def _projection_inputs(architecture: Architecture) -> int:
    """Return the inputs of the projection between tables and blocks; none at equal widths."""
    if architecture.trigram_embedding:
        return 3 * architecture.table_width
    return architecture.table_width if architecture.embedding_width is not None else 0


def _relative_alive(architecture: Architecture, tokens: int, queries: int, length: int, item: int) -> int:
    """Return what disentangled attention holds, beside its input and query, key and value, without gradients.

    Products of N tokens with P relative positions, a·A·N·P, the scores of R queries twice, 2a·A·R·S, both projections of the
    table, 2aPH, and each pair's row, 8S².
    """
    a, rows = architecture, relative_rows(architecture, length)
    scores = a.heads * (tokens * rows + 2 * queries * length)
    return item * (scores + 2 * rows * a.width) + TOKEN * length**2


def position_bytes(architecture: Architecture, precision: WeightFormat = "fp32") -> int:
    """Bytes of unlearned position tensors.

    Rotary ones have cosines and sines for half a head's numbers, a·P·H/A, twice if local layers have their own; ALiBi a number
    per layer, head and signed distance, a·L·A·(2·P − 1).
    """
    a = architecture
    angles = a.positions * a.head_width * (1 if a.local_rotary_theta is None else 2) if a.rotary else 0
    biases = a.groups * a.heads * a.biased_distances if a.distance_bias == "alibi" else 0
    return itemsize(precision) * (angles + biases)


def _remade(architecture: Architecture) -> int:
    """Extra query and key tensors of residual-stream size, from norms or rotation."""
    return 2 if architecture.rotary or architecture.query_key_norm else 0


def memory_of(architecture: Architecture, batch: int, sequence_length: int, precision: Precision) -> dict[str, Memory]:
    """Memory of training (BERT's 15% of positions masked, no dropout) and of inference, without a run.

    Raises InputError if the batch is empty or the architecture has fewer positions than the length.
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


def itemsize(precision: WeightFormat) -> int:
    """Bytes of a number: 4 in fp32, 2 in bf16, and 4 beside int8, which only matrices and tables have."""
    return 2 if precision == "bf16" else FLOAT


def _forward_activations(architecture: Architecture, step: TrainingStep) -> int:
    """Peak of a forward pass without gradients to the masked positions; with several layers, in one with all tokens.

    In fp32 it equals inference. In bf16 the residual stream stays in fp32: attention holds its input 4NH, query, key, value,
    their mix and its product 5aNH + 4AN, on CPU scores and probabilities 2a·A·S·N instead of the last, with a bias by distance
    in both precisions; the FFN holds 8NH, and the inner size before and after GELU 2aNF. Pre-norm holds 4NH more.
    """
    a, h, n, item = architecture, architecture.width, step.tokens, step.item
    inner, narrow = a.block_width, a.bottleneck_width is not None
    if a.depth == 1 and not step.losses:
        return _only_layer_forward(a, step)
    if step.precision == "fp32":
        return inference_memory(a, step.batch, step.sequence_length).activations
    attention = n * (FLOAT * (h + narrow * inner) + (5 + _remade(a)) * item * inner + _weighed(a, step))
    attention += _bias_bytes(a, step.sequence_length, step.sequence_length, FLOAT + item)
    attention += 2 * step.sequence_length**2 if a.local_layers else 0
    if a.relative:
        relative = _relative_alive(a, n, n, step.sequence_length, item)
        attention = max(attention + item * n * a.heads * step.sequence_length, n * h * (FLOAT + 4 * item) + relative)
    feed_forward = n * (FLOAT * (h + inner) + _inner_alive(a) * item * a.ffn)
    widening = n * ((3 * FLOAT + item) * h + FLOAT * inner) * narrow
    normed = FLOAT * n * h if a.norm == "pre" else 0
    return max(attention, feed_forward, widening) + normed + TOKEN * n


def _only_layer_forward(architecture: Architecture, step: TrainingStep) -> int:
    """Return the same for a single layer, which works at the masked positions.

    Attention holds its input 4NH, in pre-norm normed too, 4NH, key and value 2aNH, in bf16 a copy of one, or the normed key,
    aNH, with rotary positions the rotated key and its passes, 2aNH, and of the masked positions their input 4MH, query and mix
    2aMH, attention weights and a bias by distance, 4·A·S·M; the FFN holds 4NH + 8MH, and its inner sizes.
    """
    a, h, n, m, item = architecture, architecture.width, step.tokens, _encoded(architecture, step), step.item
    normed = a.norm == "pre" and not a.skips_first_norm
    bf16 = step.precision == "bf16"
    pairs = 4 if a.rotary else 3 if bf16 or a.query_key_norm else 2
    attention = n * h * (FLOAT * (1 + normed) + pairs * item) + m * ((FLOAT + 2 * item) * h + _weighed(a, step))
    attention += _bias_bytes(a, m, step.sequence_length, FLOAT + item if bf16 else FLOAT)
    if a.relative:
        relative = _relative_alive(a, n, m, step.sequence_length, item)
        attention = max(attention + item * m * a.heads * step.sequence_length, n * h * (FLOAT + 2 * item) + relative)
    feed_forward = FLOAT * n * h + m * (2 * FLOAT * h + _inner_alive(a) * item * a.ffn)
    return max(attention, feed_forward) + TOKEN * n


def _weighed(architecture: Architecture, step: TrainingStep) -> int:
    """Bytes of attention weights per token without gradients; if fused, a log-sum-exp per head."""
    if replace(step, dropout=0.0).fused_attention:
        return FLOAT * architecture.heads
    return 2 * step.item * architecture.heads * step.sequence_length


def _is_fused(architecture: Architecture, step: TrainingStep) -> bool:
    """Whether attention with gradients keeps no S·S probabilities; on a CPU a learned bias keeps them."""
    return step.fused_attention and (step.device == "cuda" or not _learns_scores(architecture))


def _learns_scores(architecture: Architecture) -> bool:
    """Whether something learned is added to the scores of attention."""
    return architecture.distance_bias == "learned" or architecture.relative


def _bias_bytes(architecture: Architecture, queries: int, keys: int, item: int) -> int:
    """Bytes of the scores' bias by distance: A·S² numbers shared by all sequences, A·M·S for M queries."""
    return item * architecture.heads * queries * keys if architecture.distance_bias != "none" else 0


def _head_activations(architecture: Architecture, step: TrainingStep) -> int:
    """Activations of the MLM head on M = B·K positions: its norm's, and M·(aH + 2aE) around it, after ReLU M·(aH + aE).

    A detector has N·(3aH + 12), after ReLU N·(2aH + 12).
    """
    a, inner = architecture, architecture.mlm_width
    if a.generator_share:
        return step.tokens * (step.item * (2 if a.activation == "relu" else 3) * a.width + 3 * FLOAT)
    if a.mlm_transform == "none":
        return step.masked * step.item * a.width
    products = step.item * (a.width + (1 if a.mlm_activation == "relu" else 2) * inner)
    normalising = a.model_copy(update={"norm_kind": "layer"}) if a.norm_kind == "affine" else a
    return step.masked * (products + _norm_activations(normalising, inner, step, step.item))


def _norm_activations(architecture: Architecture, width: int, step: TrainingStep, item: int = FLOAT) -> int:
    """Bytes that a norm keeps per token: its input of `item` bytes a number and two statistics.

    RMSNorm reads fp32 and has one statistic; on a CPU it also keeps the unscaled output. An affine map has none.
    """
    if architecture.norm_kind == "affine":
        return item * width
    if architecture.norm_kind == "layer":
        return item * width + 2 * FLOAT
    return FLOAT * width * (2 if step.device == "cpu" else 1) + FLOAT


def _inner_kept(architecture: Architecture) -> int:
    """Tensors of the inner size kept for the backward pass."""
    return {"relu": 1, "gelu": 2, "gelu_tanh": 2}.get(architecture.activation, 4)


def _inner_alive(architecture: Architecture) -> int:
    """Peak tensors of the inner size in the forward pass."""
    return 4 if architecture.gated else 2


def _copied_weights(architecture: Architecture, step: TrainingStep) -> int:
    """Autocast's bf16 copies of the products' weights, one per layer that uses them: all but NOT_COPIED."""
    if step.precision == "fp32":
        return 0
    a = architecture
    decodes = a.tied_decoder and not a.generator_share
    left_out = NOT_COPIED if decodes else NOT_COPIED | {"token embeddings"}
    used = {"layer_groups": None, "depth": a.depth + a.enhanced_mask_decoder}
    unshared = parameters(a.model_copy(update=used)).components
    unshared = tuple(component for component in unshared if not component.name.startswith(OF_GENERATOR))
    return step.item * sum(component.count for component in unshared if component.name not in left_out)


def _stream(step: TrainingStep) -> int:
    """Bytes of a number of the residual stream, 4, on CUDA a."""
    return step.item if step.device == "cuda" else FLOAT


def _last_forward(architecture: Architecture, step: TrainingStep) -> int:
    """Return the last layer's forward memory at its end beyond the stored parts, less the head's activations.

    Sublayer inputs are stored by pre-norm's norms, and in fp32 by the products, which in bf16 store the copy.
    """
    h, stream = architecture.width, _stream(step)
    rows = _encoded(architecture, step)
    output = 0 if architecture.norm == "pre" else step.item * rows * h
    inputs = stream * (step.tokens + rows) * h if architecture.norm == "post" and step.precision == "bf16" else 0
    return stream * rows * h + output + inputs - _head_activations(architecture, step)


def _layer_backward(architecture: Architecture, step: TrainingStep, last: bool) -> int:
    """Return the peak of the backward pass of the last layer, or of the one before, beyond the activations.

    Negative if it frees more: the head's activations are gone by then, and before the last layer also the last layer's,
    replaced by its weight gradients. For R tokens, the FFN adds the gradients of the inner size, aRF (2aRF, except GELU, whose
    gradient replaces the incoming one), and of the outer weights, 4HF, and in bf16 a copy of the incoming one, aRH. Unfused
    attention follows after freeing the FFN's activations and those around it, 2aRF + 4aRH (ReLU's aRF, gated ones 4aRF), with
    the gradients of the FFN's weights, 8HF (gated 12HF), of the values, aNH, and of the probabilities, 4·A·S·R (in bf16 twice:
    of probabilities and scores; also in fp32 if only a learned bias prevents fusion, whose own gradient replaces two if S is
    above R, 8·A·S²), or if more the gradient of all products with relative positions, a·A·N·P. On CUDA torch's kernel gives a
    learned bias a gradient per sequence, a·A·S·R.
    """
    a, h, item = architecture, architecture.block_width, step.item
    if a.depth == 1 and not last:
        return 0
    rows = _encoded(architecture, step) if last else step.tokens
    copy = rows * item * h if step.precision == "bf16" else 0
    widest = rows * item * a.ffn * (1 if a.activation in ("gelu", "gelu_tanh") else 2) + FLOAT * h * a.ffn + copy
    widest += FLOAT * h * a.width if a.bottleneck_width is not None else 0
    if not step.fused_attention or _learns_scores(a):
        probabilities = FLOAT * rows * a.heads * step.sequence_length
        if step.device == "cuda":
            probabilities = item * rows * a.heads * step.sequence_length
        elif step.fused_attention:
            probabilities = 2 * FLOAT * max(rows, step.sequence_length) * a.heads * step.sequence_length
        if a.relative:
            probabilities = max(probabilities, item * step.tokens * a.heads * relative_rows(a, step.sequence_length))
        values = item * step.tokens * h
        freed = rows * item * (_inner_kept(a) * a.ffn + 4 * h)
        widest = max(widest, probabilities + values + matrices(a) * FLOAT * h * a.ffn - freed)
    if not last:
        copied = step.item if step.precision == "bf16" else 0
        widest += (FLOAT - copied) * _layer_matrices(a) - _layer_activations(a, step, last=True)
    return widest - _head_activations(a, step)
