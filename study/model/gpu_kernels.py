"""Triton kernels with gradients for everything between the products of training on a GPU.

Memory traffic bounds them, so one that writes the gradient of a product's result also sums its columns, the gradient of the
product's bias. All compute in fp32 on contiguous tensors. Except in `rotate`, keyword arguments divide the work: rows and
columns, or all numbers, of a block, blocks per program, warps, and pipeline stages; `study bench --only kernels` times other
choices.

Letters: B sequences, S tokens, A heads, D head width, E half of it, H width, F ffn, N rows, R rows of angles, V vocabulary.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

THREADS, LOADED = 32, 8
"""Threads of a warp, and the bf16 numbers that each loads at once."""

LOG2_E = tl.constexpr(1.4426950408889634)
"""The factor from exponents of e to exponents of two, which a GPU computes."""

LONGEST, HEAD_WIDTHS = 128, (16, 32, 64)
"""The longest sequence and the head widths that a program of `attention_gradient` can hold."""


@triton.jit
def _column_sums_kernel(parts_at, sums_at, count, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row[:, None] < count) & (columns[None, :] < WIDTH)
        sums += tl.load(parts_at + row[:, None] * WIDTH + columns[None, :], there, 0.0)
    tl.store(sums_at + columns, tl.sum(sums, 0), columns < WIDTH)


def _column_sums(parts: Float[Tensor, "programs columns"]) -> Float[Tensor, " columns"]:
    (count, width), columns = parts.shape, 32
    sums = parts.new_empty(width)
    _column_sums_kernel[triton.cdiv(width, columns),](parts, sums, count, width, 128, columns, num_warps=4)
    return sums


@triton.jit
def _normal(x):
    """Compute the standard normal distribution function and density, to 1e-7, from one exponential.

    A squared reciprocal root takes fewer instructions than a division. Source: Abramowitz and Stegun 1964, 7.1.26.
    """
    exponential = tl.exp2(x * x * (-0.5 * LOG2_E))
    root = tl.rsqrt(1.0 + 0.23164188910766447 * tl.abs(x))
    t = root * root
    polynomial = 0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
    tail = exponential * t * polynomial
    return tl.where(x < 0, tail, 1.0 - tail), exponential * 0.3989422804014327


@triton.jit
def _gelu_kernel(x_at, y_at, count, COLUMNS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    x = tl.load(x_at + at, at < count, 0.0).to(tl.float32)
    distribution, _ = _normal(x)
    tl.store(y_at + at, (x * distribution).to(y_at.dtype.element_ty), at < count)


def gelu(x: Float[Tensor, "*positions F"], *, columns: int = 1024, warps: int = 4) -> Float[Tensor, "*positions F"]:
    """Return the exact GELU, x · Φ(x), to 1e-6."""
    y = torch.empty_like(x)
    _gelu_kernel[triton.cdiv(x.numel(), columns),](x, y, x.numel(), columns, num_warps=warps)
    return y


@triton.jit
def _gelu_gradient_kernel(
    dy_at, x_at, dx_at, sums_at, rows,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in tl.range(STEPS, num_stages=STAGES):
        row = (tl.program_id(0).to(tl.int64) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        at = row[:, None] * WIDTH + columns[None, :]
        there = (row[:, None] < rows) & (columns[None, :] < WIDTH)
        dy = tl.load(dy_at + at, there, 0.0).to(tl.float32)
        x = tl.load(x_at + at, there, 0.0).to(tl.float32)
        distribution, density = _normal(x)
        dx = dy * (distribution + x * density)
        tl.store(dx_at + at, dx.to(dx_at.dtype.element_ty), there)
        sums += dx
    tl.store(sums_at + tl.program_id(0) * WIDTH + columns, tl.sum(sums, 0), columns < WIDTH)


def gelu_gradient(
    dy: Float[Tensor, "*positions F"],
    x: Float[Tensor, "*positions F"],
    *,
    rows: int = 32,
    columns: int = 128,
    steps: int = 8,
    warps: int = 4,
    stages: int = 3,
) -> tuple[Float[Tensor, "*positions F"], Float[Tensor, " F"]]:
    """Return the gradient of GELU by x, dy · (Φ(x) + x · φ(x)), and its column sums."""
    width = x.shape[-1]
    count = x.numel() // width
    blocks = triton.cdiv(count, rows * steps)
    dx, sums = torch.empty_like(x), x.new_empty(blocks, width, dtype=torch.float32)
    grid = (blocks, triton.cdiv(width, columns))
    _gelu_gradient_kernel[grid](dy, x, dx, sums, count, width, rows, columns, steps, stages, num_warps=warps)
    return dx, _column_sums(sums)


@triton.jit
def _add_norm_kernel(
    x_at, added_at, added_bias_at, weight_at, bias_at, y_at, mean_at, scale_at, rows, epsilon,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    at = row.to(tl.int64) * WIDTH + columns
    there = (row < rows) & (columns < WIDTH)
    x = tl.load(x_at + at, there, 0.0).to(tl.float32) + tl.load(added_at + at, there, 0.0).to(tl.float32)
    x += tl.load(added_bias_at + columns, columns < WIDTH, 0.0)
    mean = tl.sum(x, 1, keep_dims=True) / WIDTH
    centred = tl.where(there, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1, keep_dims=True) / WIDTH + epsilon)
    weight = tl.load(weight_at + columns, columns < WIDTH, 0.0)
    bias = tl.load(bias_at + columns, columns < WIDTH, 0.0)
    y = centred * scale * weight + bias
    tl.store(y_at + at, y.to(y_at.dtype.element_ty), there)
    tl.store(mean_at + row, mean, row < rows)
    tl.store(scale_at + row, scale, row < rows)


class AddedNorm(NamedTuple):
    """A norm of rows, with each row's mean and scale, which the gradient needs."""

    y: Float[Tensor, "*positions H"]
    mean: Float[Tensor, " N"]
    scale: Float[Tensor, " N"]


def add_norm(
    x: Float[Tensor, "*positions H"],
    added: Float[Tensor, "*positions H"],
    added_bias: Float[Tensor, " H"],
    weight: Float[Tensor, " H"],
    bias: Float[Tensor, " H"],
    epsilon: float,
    *,
    block: int = 1024,
    warps: int = 1,
) -> AddedNorm:
    """Return the LayerNorm of x + (added + added_bias), where `added` is a product whose bias cuBLAS would add more slowly.

    A warp with its own rows waits for no other.
    """
    width = x.shape[-1]
    count, (rows, columns, warps) = x.numel() // width, _whole_rows(width, block, warps)
    normed = AddedNorm(torch.empty_like(x), *x.new_empty(2, count, dtype=torch.float32))
    grid = (triton.cdiv(count, rows),)
    inputs = (x, added, added_bias, weight, bias)
    _add_norm_kernel[grid](*inputs, *normed, count, epsilon, width, rows, columns, num_warps=warps)
    return normed


@triton.jit
def _add_norm_gradient_kernel(
    dy_at, dy2_at, x_at, added_at, added_bias_at, weight_at, mean_at, scale_at, dx_at, sums_at, rows,
    TWO: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, COLUMNS)
    weight = tl.load(weight_at + columns, columns < WIDTH, 0.0)
    added_bias = tl.load(added_bias_at + columns, columns < WIDTH, 0.0)
    of_weight = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_x = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = block * ROWS + tl.arange(0, ROWS)
        at = row[:, None].to(tl.int64) * WIDTH + columns[None, :]
        there = (row[:, None] < rows) & (columns[None, :] < WIDTH)
        dy = tl.load(dy_at + at, there, 0.0).to(tl.float32)
        if TWO:
            dy += tl.load(dy2_at + at, there, 0.0).to(tl.float32)
        x = tl.load(x_at + at, there, 0.0).to(tl.float32) + tl.load(added_at + at, there, 0.0).to(tl.float32)
        x += added_bias[None, :]
        scale = tl.load(scale_at + row, row < rows, 0.0)[:, None]
        deviation = (x - tl.load(mean_at + row, row < rows, 0.0)[:, None]) * scale
        inner = dy * weight[None, :]
        along = tl.sum(inner * deviation, 1)[:, None] / WIDTH
        dx = (inner - tl.sum(inner, 1)[:, None] / WIDTH - deviation * along) * scale
        tl.store(dx_at + at, dx.to(dx_at.dtype.element_ty), there)
        of_weight += dy * deviation
        of_bias += dy
        of_x += dx
    sums = sums_at + tl.program_id(0) * 3 * WIDTH + columns
    tl.store(sums, tl.sum(of_weight, 0), columns < WIDTH)
    tl.store(sums + WIDTH, tl.sum(of_bias, 0), columns < WIDTH)
    tl.store(sums + 2 * WIDTH, tl.sum(of_x, 0), columns < WIDTH)


class AddNormGradient(NamedTuple):
    """The gradients by x (also by `added`), weight, bias and the added bias."""

    dx: Float[Tensor, "*positions H"]
    dweight: Float[Tensor, " H"]
    dbias: Float[Tensor, " H"]
    dadded_bias: Float[Tensor, " H"]


def add_norm_gradient(
    dy: Float[Tensor, "*positions H"],
    dy2: Float[Tensor, "*positions H"] | None,
    x: Float[Tensor, "*positions H"],
    added: Float[Tensor, "*positions H"],
    added_bias: Float[Tensor, " H"],
    weight: Float[Tensor, " H"],
    mean: Float[Tensor, " N"],
    scale: Float[Tensor, " N"],
    *,
    block: int = 2048,
    warps: int = 4,
    programs: int = 3,
    stages: int = 3,
) -> AddNormGradient:
    """Return the gradients of `add_norm`, whose result has the gradient dy + dy2; `programs` run on each multiprocessor.

    Rows longer than a block are not prefetched, since they might exceed shared memory.
    """
    width = x.shape[-1]
    count, (rows, columns, warps) = x.numel() // width, _whole_rows(width, block, warps)
    programs = min(triton.cdiv(count, rows), programs * _multiprocessors(x.device))
    dx, sums = torch.empty_like(x), x.new_empty(programs, 3 * width, dtype=torch.float32)
    inputs = (dy, dy if dy2 is None else dy2, x, added, added_bias, weight, mean, scale)
    sizes = (width, rows, columns, stages if columns <= block else 1)
    _add_norm_gradient_kernel[programs,](*inputs, dx, sums, count, dy2 is not None, *sizes, num_warps=warps)
    return AddNormGradient(dx, *_column_sums(sums).view(3, width))


def _whole_rows(width: int, block: int, warps: int) -> tuple[int, int, int]:
    """Return the rows, columns and warps of a block: about `block` numbers in whole rows, or one longer row."""
    columns = triton.next_power_of_2(width)
    return max(1, block // columns), columns, warps * max(1, columns // block)


@triton.jit
def _attention_gradient_kernel(
    joint_at, dy_at, djoint_at, sums_at, length, count, factor,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
    FULL: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Loop over the sequences of this program's head.

    The weights of a query sum to one, so the gradients by the keys sum to zero and those by the values to the sum of dy. Each
    thread keeps its sums until the last sequence, with PARTS rows of dy.
    """
    rows, columns = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    head = tl.program_id(0) % HEADS
    there = tl.full([TOKENS, 1], True, tl.int1) if FULL else rows[:, None] < length
    of_query = tl.zeros([TOKENS, WIDTH], tl.float32)
    of_value = tl.zeros([TOKENS // PARTS, WIDTH], tl.float32)
    for each in tl.range(tl.program_id(0), count, tl.num_programs(0), num_stages=STAGES):
        row = each // HEADS * length + rows[:, None].to(tl.int64)
        at = row * (3 * HEADS * WIDTH) + head * WIDTH + columns[None, :]
        at_dy = row * (HEADS * WIDTH) + head * WIDTH + columns[None, :]
        query = tl.load(joint_at + at, there, 0.0)
        key = tl.load(joint_at + at + HEADS * WIDTH, there, 0.0)
        value = tl.load(joint_at + at + 2 * HEADS * WIDTH, there, 0.0)
        dy = tl.load(dy_at + at_dy, there, 0.0)
        of_value += tl.sum(tl.reshape(dy.to(tl.float32), [PARTS, TOKENS // PARTS, WIDTH]), 0)
        scores = tl.dot(query, tl.trans(key))
        if not FULL:
            scores = tl.where(rows[None, :] < length, scores, float("-inf"))
        base_two = factor * LOG2_E
        powers = tl.exp2(scores * base_two - (tl.max(scores, 1) * base_two)[:, None])
        inverse = 1.0 / tl.sum(powers, 1)
        dvalue = tl.dot(tl.trans((powers * inverse[:, None]).to(query.dtype)), dy)
        tl.store(djoint_at + at + 2 * HEADS * WIDTH, dvalue.to(query.dtype), there)
        dweights = tl.dot(dy, tl.trans(value))
        mean = tl.sum(powers * dweights, 1) * inverse
        scaled = inverse * factor
        dscores = (powers * (dweights * scaled[:, None] - (mean * scaled)[:, None])).to(query.dtype)
        dquery = tl.dot(dscores, key)
        tl.store(djoint_at + at, dquery.to(query.dtype), there)
        of_query += dquery
        dkey = tl.dot(tl.trans(dscores), query)
        tl.store(djoint_at + at + HEADS * WIDTH, dkey.to(query.dtype), there)
    sums = sums_at + (tl.program_id(0) // HEADS * 3 * HEADS + head) * WIDTH + columns
    tl.store(sums, tl.sum(of_query, 0))
    tl.store(sums + HEADS * WIDTH, tl.zeros([WIDTH], tl.float32))
    tl.store(sums + 2 * HEADS * WIDTH, tl.sum(of_value, 0))


def attention_gradient(
    joint: Float[Tensor, "B S 3*A*D"], dy: Float[Tensor, "B S A*D"], heads: int, *, stages: int = 3, warps: int = 8
) -> tuple[Float[Tensor, "B S 3*A*D"], Float[Tensor, " 3*A*D"]]:
    """Return the gradient of attention by stacked queries, keys and values, and its column sums.

    It recomputes the weights from queries and keys. `holds_attention` limits its sizes. A block is a sequence; masks leave
    registers for two stages.
    """
    batch, length, joint_width = joint.shape
    width, tokens = joint_width // 3 // heads, max(16, triton.next_power_of_2(length))
    groups = max(1, min(batch, _multiprocessors(joint.device) // heads))
    djoint, sums = torch.empty_like(joint), joint.new_empty(groups, joint_width, dtype=torch.float32)
    parts, full = max(1, tokens * width // (THREADS * warps * LOADED)), tokens == length
    sizes = (length, batch * heads, width**-0.5, heads, tokens, width, full, parts, stages if full else 2)
    _attention_gradient_kernel[groups * heads,](joint, dy, djoint, sums, *sizes, num_warps=warps)
    return djoint, _column_sums(sums)


def holds_attention(x: Float[Tensor, "B S H"], heads: int) -> bool:
    """Whether `attention_gradient` supports these sizes: a program holds a head, in a Hopper's memory."""
    _, length, width = x.shape
    return length <= LONGEST and width // heads in HEAD_WIDTHS and _is_hopper(x.device)


@triton.jit
def _join_kernel(
    first_at, second_at, last_at, joint_at, sums_at, rows,
    PARTS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    columns, part = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(2)
    source = first_at
    if part == 1:
        source = second_at
    if part == PARTS - 1:
        source = last_at
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(STEPS):
        row = (tl.program_id(0).to(tl.int64) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        there = (row[:, None] < rows) & (columns[None, :] < WIDTH)
        numbers = tl.load(source + row[:, None] * WIDTH + columns[None, :], there, 0.0)
        tl.store(joint_at + row[:, None] * PARTS * WIDTH + part * WIDTH + columns[None, :], numbers, there)
        sums += numbers.to(tl.float32)
    tl.store(sums_at + (tl.program_id(0) * PARTS + part) * WIDTH + columns, tl.sum(sums, 0), columns < WIDTH)


def joined(
    *parts: Float[Tensor, "B S H"], rows: int = 32, columns: int = 128, steps: int = 8, warps: int = 4
) -> tuple[Float[Tensor, "B S parts*H"], Float[Tensor, " parts*H"]]:
    """Return the gradients by queries, keys and values, or by keys and values, side by side, and their column sums."""
    first, second, last, number = parts[0], parts[1], parts[-1], len(parts)
    *leading, width = first.shape
    count = first.numel() // width
    blocks = triton.cdiv(count, rows * steps)
    joint = first.new_empty(*leading, number * width)
    sums = first.new_empty(blocks, number * width, dtype=torch.float32)
    grid = (blocks, triton.cdiv(width, columns), number)
    _join_kernel[grid](first, second, last, joint, sums, count, number, width, rows, columns, steps, num_warps=warps)
    return joint, _column_sums(sums)


@triton.jit
def _rotate_kernel(
    x_at, angles_at, rows, period, stride,
    PAIRS: tl.constexpr, SIGN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, pair = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    there = (row[:, None] < rows) & (pair[None, :] < PAIRS)
    angle = (row % period)[:, None] * PAIRS + pair[None, :]
    cosine = tl.load(angles_at + angle, there, 0.0)
    sine = SIGN * tl.load(angles_at + period * PAIRS + angle, there, 0.0)
    at = x_at + row.to(tl.int64)[:, None] * stride + tl.program_id(1) * 2 * PAIRS + pair[None, :]
    first, second = tl.load(at, there, 0.0).to(tl.float32), tl.load(at + PAIRS, there, 0.0).to(tl.float32)
    tl.store(at, (first * cosine - second * sine).to(x_at.dtype.element_ty), there)
    tl.store(at + PAIRS, (second * cosine + first * sine).to(x_at.dtype.element_ty), there)


def rotate(x: Float[Tensor, "*positions H"], rotary: Float[Tensor, "2 R E"], heads: int, *, back: bool = False) -> None:
    """Rotate the first `heads` heads of every position in place, as `study.model.encoder.rotated` does, or back.

    Row n takes the angles of row n mod R: R is the length of the sequences, or the number of rows.
    """
    _, period, pairs = rotary.shape
    count, rows = x.numel() // x.shape[-1], 32
    sizes = (count, period, x.shape[-1], pairs, -1 if back else 1, rows, triton.next_power_of_2(pairs))
    _rotate_kernel[triton.cdiv(count, rows), heads](x, rotary, *sizes, num_warps=4)


@triton.jit
def _cross_entropy_kernel(
    logits_at, labels_at, losses_at, normalisers_at, ignored, CLASSES: tl.constexpr, STRIDE: tl.constexpr, COLUMNS: tl.constexpr
):
    """One row per program, by blocks: the running maximum logit, and the sum of exponentials relative to it."""
    row = tl.program_id(0)
    start = logits_at + row.to(tl.int64) * STRIDE
    label = tl.load(labels_at + row)
    largest, total = float("-inf"), 0.0
    for first in range(0, CLASSES, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        logits = tl.load(start + columns, columns < STRIDE, 0.0).to(tl.float32)
        logits = tl.where(columns < CLASSES, logits, float("-inf"))
        larger = tl.maximum(largest, tl.max(logits, 0))
        total = total * tl.exp2((largest - larger) * LOG2_E) + tl.sum(tl.exp2((logits - larger) * LOG2_E), 0)
        largest = larger
    normaliser = largest + tl.log2(total) / LOG2_E
    counts = label != ignored
    of_label = tl.load(start + tl.where(counts, label, 0)).to(tl.float32)
    tl.store(losses_at + row, tl.where(counts, normaliser - of_label, 0.0))
    tl.store(normalisers_at + row, normaliser)


def cross_entropy(
    logits: Float[Tensor, "N columns"],
    labels: Int[Tensor, " N"],
    vocabulary: int,
    ignored: int,
    *,
    columns: int = 2048,
    warps: int = 4,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Each row's −log softmax at its label in nats, 0 for `ignored` labels, and the log of its sum of exponentials.

    Columns from V on are not logits.
    """
    losses, normalisers = logits.new_empty(2, len(logits), dtype=torch.float32)
    columns = min(columns, triton.next_power_of_2(vocabulary))
    _cross_entropy_kernel[len(logits),](
        logits, labels, losses, normalisers, ignored, vocabulary, logits.shape[1], columns, num_warps=warps
    )
    return losses, normalisers


@triton.jit
def _cross_entropy_gradient_kernel(
    logits_at, labels_at, normalisers_at, factor_at, sums_at, rows, ignored,
    CLASSES: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    factor = tl.load(factor_at)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(STEPS):
        row = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        label = tl.load(labels_at + row, row < rows, ignored).to(tl.int32)[:, None]
        normaliser = tl.load(normalisers_at + row, row < rows, 0.0)[:, None]
        scale = tl.where(label != ignored, factor, 0.0)
        at = row[:, None].to(tl.int64) * STRIDE + columns[None, :]
        there = (row[:, None] < rows) & (columns[None, :] < STRIDE)
        logits = tl.load(logits_at + at, there, 0.0).to(tl.float32)
        gradient = (tl.exp2((logits - normaliser) * LOG2_E) - (columns[None, :] == label).to(tl.float32)) * scale
        gradient = tl.where(columns[None, :] < CLASSES, gradient, 0.0)
        tl.store(logits_at + at, gradient.to(logits_at.dtype.element_ty), there)
        sums += gradient
    tl.store(sums_at + tl.program_id(0) * STRIDE + columns, tl.sum(sums, 0), columns < STRIDE)


def write_cross_entropy_gradient(
    logits: Float[Tensor, "N columns"],
    labels: Int[Tensor, " N"],
    normalisers: Float[Tensor, " N"],
    factor: Float[Tensor, ""],
    vocabulary: int,
    ignored: int,
    *,
    rows: int = 4,
    columns: int = 512,
    steps: int = 16,
    warps: int = 4,
) -> Float[Tensor, " columns"]:
    """Overwrite logits with the gradient of `factor` times the losses of `cross_entropy`, and return its column sums."""
    count, stride = logits.shape
    blocks = triton.cdiv(count, rows * steps)
    sums = logits.new_empty(blocks, stride, dtype=torch.float32)
    grid = (blocks, triton.cdiv(stride, columns))
    _cross_entropy_gradient_kernel[grid](
        logits, labels, normalisers, factor, sums, count, ignored, vocabulary, stride, rows, columns, steps, num_warps=warps
    )
    return _column_sums(sums)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    """Return the multiprocessors of a GPU; 4 for a CPU, which interprets kernels."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@functools.cache
def _is_hopper(device: torch.device) -> bool:
    """Whether a device is a GPU of compute capability 9.0, or a CPU, which interprets kernels."""
    return device.type == "cpu" or torch.cuda.get_device_capability(device) == (9, 0)
