"""Memory of training and inference by part, in bytes: integer arithmetic on what the modules really keep, without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from study.architecture import Architecture
from study.components import matrices
from study.counting import MASKING_RATE, masked_positions, parameters
from study.errors import InputError

Precision = Literal["fp32", "bf16"]
AskedPrecision = Literal[Precision, "auto"]
"""A precision, or the one that suits the device (study.training.execution.resolve_precision)."""

Device = Literal["cpu", "cuda"]

FLOAT, TOKEN = 4, 8
"""Bytes of a float32 and of a token id (int64)."""

NOT_COPIED = {"position embeddings", "segment embeddings", "embedding norm", "block norms", "final norm", "MLM norm"}
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
class Step:
    """What one optimiser step works on: B sequences of S tokens on this device, K of each masked, in a precision.

    Attention is fused everywhere but on CPUs with dropout or in bf16; there it keeps the S·S probabilities. `ranks` share the
    batch by DDP, whose buckets hold the gradients once more. A step that is `graphed` (a CUDA graph) keeps what it works in.
    A `teacher` predicts the masked positions first.
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

    @property
    def tokens(self) -> int:
        """N = B·S."""
        return self.batch * self.sequence_length

    @property
    def item(self) -> int:
        """Bytes of a number in the matrix products, a: 4 in fp32, 2 in bf16."""
        return itemsize(self.precision)

    @property
    def fused_attention(self) -> bool:
        """Whether attention runs without keeping its S·S probabilities."""
        return self.device == "cuda" or (not self.dropout and self.precision == "fp32")


def training_memory(architecture: Architecture, step: Step) -> Memory:
    """Memory of training by AdamW at its peak: stored parts, and the workspace of the moment that needs the most.

    Stored, with P parameters and N = B·S tokens, in bytes (a = 4 in fp32, 2 in bf16 autocast): weights 4P with the angles of
    rotary positions (`angle_bytes`), gradients 4P, two moments 8P, activations (see `activation_bytes`), and in bf16 the copies
    2P of the products' weights. With M = B·K masked positions the moments are
    - loss: all that is stored, the last step's gradients among it, with the encoder's output 4NH (on CUDA aNH), and logits
      and (log-)probabilities: 8MV;
    - last layer's forward pass: all that is stored but for the head's activations, what the last norm makes, 4NH (on CUDA aNH),
      and in post-norm what the FFN gives, aNH, and in bf16 what the two sublayers began with, 8NH;
    - gradient of the loss (on CUDA; on a CPU it takes the place of the probabilities): the old gradients are gone,
      log-probabilities and two gradients of them 12MV;
    - last layer's backward: activations, the decoder's gradient 4VE, and gradients on their way through the layer;
    - gradient of the token table: gradients whole, its two contributions and their sum, so 8VE beside (tied only);
    - validation, at 2B sequences: logits and log-probabilities 16MV, or before them the forward pass (`_forward_activations`)
      with the copies of the weights; gradients and activations gone, but beside the largest of the other moments where steps
      are graphed.
    A teacher, with weights 4P' of its own, adds to the loss its logits, both log-probabilities, its probabilities, the
    difference and their product, less the probabilities of the words, which come later: 20MV, in bf16 22MV; and a moment before
    the student's forward pass,
    - lesson: the last step's gradients, with the teacher's forward pass (`_forward_activations`) or its logits, 4MV.

    Convention: tensors alive in PyTorch's allocator from the second step on, activations not recomputed; Lightning frees the
    gradients between forward and backward pass and before validation. Source: autograd's saved tensors, which
    tests/test_memory.py measures.
    """
    count = parameters(architecture).parameters
    weights, gradients = FLOAT * count, FLOAT * count * (2 if step.ranks > 1 else 1)
    teacher = 0 if step.teacher is None else FLOAT * parameters(step.teacher).parameters + angle_bytes(step.teacher)
    more = teacher + angle_bytes(architecture)
    fixed = 3 * weights + more
    copies, kept = _copied_weights(architecture, step), activation_bytes(architecture, step)
    logits = FLOAT * step.batch * step.predictions * architecture.vocabulary
    table = FLOAT * architecture.vocabulary * architecture.table_width
    bf16_logits = logits // 2 if step.precision == "bf16" else 0
    output = _stream(architecture, step)
    moments = {
        "forward pass of the last layer": fixed + gradients + copies + kept + _last_forward(architecture, step),
        "loss": fixed + gradients + copies + kept + output + 2 * logits,
        "gradient of the loss": fixed + copies + kept + (3 if step.device == "cuda" else 1) * logits,
        "backward pass of the last block": fixed + copies + kept + table + _block_backward(architecture, step),
        "gradient of the token table": fixed + gradients + (2 * table if architecture.tied_decoder else 0),
    }
    if step.teacher is not None:
        moments["loss"] += 5 * logits + bf16_logits
        moments["lesson"] = fixed + gradients + max(_forward_activations(step.teacher, step), logits)
    forward = copies + _forward_activations(architecture, replace(step, batch=2 * step.batch))
    moments["validation"] = (max(moments.values()) if step.graphed else fixed) + max(4 * logits, forward)
    moment = max(moments, key=lambda name: moments[name])
    workspace = moments[moment] - fixed - gradients - copies - kept
    return Memory(moment, weights + more, gradients, 2 * weights, copies, kept, workspace)


def activation_bytes(architecture: Architecture, step: Step) -> int:
    """Activations that autograd keeps for the backward pass, in bytes.

    With N = B·S tokens and a = 4 in fp32, 2 in bf16 autocast (norms' inputs are counted in fp32, though a CUDA device
    keeps its residual stream in a):
    - every norm's input and two statistics, N·(4H + 8) (of RMSNorm N·(4H + 4), on a CPU N·(8H + 4)), of two norms a layer, that
      of the embeddings, of width E, and pre-norm's last; where embeddings are projected, N·aE more, what the projection reads;
    - each layer's product inputs: to query/key/value and to the FFN 2aNH, inner size before and after GELU 2aNF (after ReLU
      alone aNF; where the FFN is gated 4aNF: both halves, the activated one and the product), attention's output aNH;
    - attention: query, key, value 3aNH, and a log-sum-exp 4AN where it is fused; otherwise the probabilities a·A·S·N, with
      dropout its mask and its result too, 3a·A·S·N; with rotary positions query and key as they were turned, 2aNH, where it is
      fused. Where it is not, with one head or one sequence alone, products take key and value as they lie in one tensor, which
      stays beside the scaled query, aNH, and with rotary positions the turned key, aNH;
    - dropout: 2L masks of NH and one of NE, of a byte each on CUDA, of the numbers' own size on CPU;
    - the head on M = B·K positions: M·(aH + 3aE + 8); token ids before and after masking, with positions and labels 16N + 16M.
    """
    a, h, n, item = architecture, architecture.width, step.tokens, step.item
    embedding = a.table_width
    of_layers = 2 * a.depth + (a.norm == "pre") - a.skips_first_norm
    norms = n * (of_layers * _norm_activations(a, h, step) + a.norms_embeddings * _norm_activations(a, embedding, step))
    projected = n * item * embedding if a.embedding_width is not None else 0
    if step.fused_attention:
        attention = n * ((3 + _turned(a)) * item * h + FLOAT * a.heads)
    else:
        kept = 3 if a.heads > 1 and step.batch > 1 else 5 if a.rotary else 4
        attention = n * item * (kept * h + a.heads * step.sequence_length * (3 if step.dropout else 1))
    layer = attention + n * item * (3 * h + _inner_kept(a) * a.ffn)
    mask, first_mask = (1, 1) if step.device == "cuda" else (item, FLOAT)
    masks = n * (2 * a.depth * mask * h + first_mask * embedding) if step.dropout else 0
    token_ids = 2 * TOKEN * (n + step.batch * step.predictions)
    return norms + projected + a.depth * layer + masks + _head_activations(a, step) + token_ids


def inference_memory(architecture: Architecture, batch: int, sequence_length: int, precision: Precision = "fp32") -> Memory:
    """Memory of the encoder's forward pass without gradients at its peak: hidden states of every token, no head.

    With N = B·S and a bytes a number (weights too: a bf16 encoder is stored in bf16): weights a·parameters_encoder, token ids
    8N, and the wider sublayer: attention holds its input, query, key, value, their mix and its product 6aNH + 4AN, the FFN
    holds the layer's input, its own, and the inner size before and after GELU aN(2H + 2F), where it is gated both halves, the
    activated one and the product aN(2H + 4F); pre-norm holds aNH more. With rotary
    positions attention holds query and key as they were turned, too, 2aNH. Attention is taken as fused, which it is everywhere
    but in bf16 on a CPU.
    """
    a, h, n, item = architecture, architecture.width, batch * sequence_length, itemsize(precision)
    attention = n * ((6 + _turned(a)) * item * h + FLOAT * a.heads)
    feed_forward = n * item * (2 * h + _inner_alive(a) * a.ffn)
    wider = "attention" if attention > feed_forward else "feed-forward"
    normed = n * item * h if a.norm == "pre" else 0
    alive = max(attention, feed_forward) + normed + TOKEN * n
    weights = item * parameters(a).parameters_encoder + angle_bytes(a, precision)
    return Memory(f"{wider} of a block", weights, 0, 0, 0, alive, 0)


def angle_bytes(architecture: Architecture, precision: Precision = "fp32") -> int:
    """Bytes of the cosines and sines by which rotary positions turn half the numbers of a head, a·P·H/A; else none."""
    a = architecture
    return itemsize(precision) * a.positions * a.head_width if a.rotary else 0


def _turned(architecture: Architecture) -> int:
    """How many tensors as large as the residual stream rotary positions add to a block: query and key as they were turned."""
    return 2 if architecture.rotary else 0


def memory_of(architecture: Architecture, batch: int, sequence_length: int, precision: Precision) -> dict[str, Memory]:
    """Memory of training (BERT's 15% of positions masked, no dropout) and of inference, for accounts without a run.

    Raises InputError where the batch is empty or the architecture has fewer positions than the length.
    """
    if batch < 1:
        raise InputError.at("--batch", f"{batch} is below the least allowed, 1")
    if not 1 <= sequence_length <= architecture.positions:
        raise InputError.at("--sequence-length", f"{sequence_length} is not between 1 and positions {architecture.positions}")
    step = Step(batch, sequence_length, masked_positions(sequence_length, MASKING_RATE), precision)
    return {
        "training": training_memory(architecture, step),
        "inference": inference_memory(architecture, batch, sequence_length, precision),
    }


def itemsize(precision: Precision) -> int:
    """Bytes of a number: 4 in fp32, 2 in bf16."""
    return 2 if precision == "bf16" else FLOAT


def _forward_activations(architecture: Architecture, step: Step) -> int:
    """What a forward pass without gradients holds at its widest: in fp32 what inference does.

    In bf16 the residual stream stays in fp32, so attention holds its input 4NH beside query, key, value, their mix and its
    product 5aNH + 4AN, on CPU scores and probabilities 2a·A·S·N in place of the last; the FFN holds 8NH, and the inner size
    before and after GELU 2aNF. Pre-norm holds 4NH more.
    """
    if step.precision == "fp32":
        return inference_memory(architecture, step.batch, step.sequence_length).activations
    a, h, n, item = architecture, architecture.width, step.tokens, step.item
    weighed = FLOAT * a.heads if step.fused_attention else 2 * item * a.heads * step.sequence_length
    attention = n * (FLOAT * h + (5 + _turned(a)) * item * h + weighed)
    feed_forward = n * (2 * FLOAT * h + _inner_alive(a) * item * a.ffn)
    normed = FLOAT * n * h if a.norm == "pre" else 0
    return max(attention, feed_forward) + normed + TOKEN * n


def _head_activations(architecture: Architecture, step: Step) -> int:
    """Activations of the MLM head on M = B·K positions: what its norm keeps, and M·(aH + 2aE) around it."""
    a, embedding = architecture, architecture.table_width
    products = step.item * (a.width + 2 * embedding)
    return step.batch * step.predictions * (products + _norm_activations(a, embedding, step, step.item))


def _norm_activations(architecture: Architecture, width: int, step: Step, item: int = FLOAT) -> int:
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


def _copied_weights(architecture: Architecture, step: Step) -> int:
    """Autocast's bf16 copies of the weights of the products, one for each layer that uses them: all but NOT_COPIED."""
    if step.precision == "fp32":
        return 0
    a = architecture
    left_out = NOT_COPIED if a.tied_decoder else NOT_COPIED | {"token embeddings"}
    unshared = parameters(a.model_copy(update={"layer_groups": None})).components
    return step.item * sum(component.count for component in unshared if component.name not in left_out)


def _stream(architecture: Architecture, step: Step) -> int:
    """Bytes of what a layer hands on, 4NH, on CUDA aNH."""
    return (step.item if step.device == "cuda" else FLOAT) * step.tokens * architecture.width


def _last_forward(architecture: Architecture, step: Step) -> int:
    """What the forward pass of the last layer holds at its end beyond what is stored, less what the head will store.

    What sublayers begin with is stored in pre-norm, by the norms, and in fp32, by the products; these store the copy in bf16.
    """
    stream = _stream(architecture, step)
    given = 0 if architecture.norm == "pre" else step.item * step.tokens * architecture.width
    begun = 2 * stream if architecture.norm == "post" and step.precision == "bf16" else 0
    return stream + given + begun - _head_activations(architecture, step)


def _block_backward(architecture: Architecture, step: Step) -> int:
    """What the backward pass of the last block holds at its widest beyond the activations; below zero where it frees more.

    The head's activations are gone by then. In the FFN come the gradients of the inner size, aNF (2aNF, but for GELU, whose
    gradient takes the place of the incoming one), and of the outer weights, 4HF, and in bf16 a copy of the incoming one, aNH.
    Attention that is not fused comes when the FFN's activations and those around it, 2aNF + 4aNH (ReLU's aNF, gated ones 4aNF),
    are freed: the gradients of the FFN's weights, 8HF (gated 12HF), and of the probabilities, 4·A·S·N
    (in bf16 twice: of the probabilities and of the scores).
    """
    a, h, n, item = architecture, architecture.width, step.tokens, step.item
    copy = n * item * h if step.precision == "bf16" else 0
    widest = n * item * a.ffn * (1 if a.activation == "gelu" else 2) + FLOAT * h * a.ffn + copy
    if not step.fused_attention:
        probabilities = FLOAT * n * a.heads * step.sequence_length
        freed = n * item * (_inner_kept(a) * a.ffn + 4 * h)
        widest = max(widest, probabilities + matrices(a) * FLOAT * h * a.ffn - freed)
    return widest - _head_activations(a, step)
