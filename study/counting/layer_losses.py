"""Losses between the layers of a student and of its teacher: which there are, where they apply, and their FLOPs and bytes.

Letters: N tokens of a batch, S of a sequence, L layers, H width, A heads; a prime marks the teacher's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from study.counting.architecture import Architecture

_PAIR = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True)
class LayerLosses:
    """Losses that draw a student's layers to its teacher's, each by its weight (0 for none), and the layers that they match.

    - `hidden_cosine`: 1 − the cosine of the hidden states (DistilBERT, Sanh et al. 2019, arXiv:1910.01108, section 3).
    - `hidden_mse`: the mean squared difference of the hidden states, the student's through a learned H × H' matrix, one for all
      layers, if the widths differ (TinyBERT, Jiao et al. 2020, arXiv:1909.10351, equations 8 and 9).
    - `attention`: the mean squared difference of the attention scores before the softmax, head by head (equation 7 there).
    - `relations`: the divergence of the student's relations, softmax(X·Yᵀ/√D), from the teacher's. Without `relation_heads`,
      those of query with key and of value with value in each head (MiniLM, Wang et al. 2020, arXiv:2002.10957, equations 4 to
      7); with them, of query, key and value each with itself, in as many heads of equal width (MiniLMv2, Wang et al. 2021,
      arXiv:2012.15828, section 3.1).

    `layers` names the pairs: `last` with last; `uniform` layer m with round(m·L'/L), embeddings included (TinyBERT, section 3);
    or `1-2,2-4`, the student's first. Losses of several pairs add up; those of attention leave out the embeddings, layer 0.
    """

    hidden_cosine: float = 0.0
    hidden_mse: float = 0.0
    attention: float = 0.0
    relations: float = 0.0
    relation_heads: int = 0
    layers: str = "last"

    def __bool__(self) -> bool:
        """Whether there is any loss."""
        return any((self.hidden_cosine, self.hidden_mse, self.attention, self.relations))

    @property
    def of_hidden(self) -> bool:
        """Whether a loss compares hidden states."""
        return bool(self.hidden_cosine or self.hidden_mse)

    @property
    def of_attention(self) -> bool:
        """Whether a loss compares what attention computes."""
        return bool(self.attention or self.relations)

    @property
    def weighs_scores(self) -> bool:
        """Whether a loss compares the scores of attention, head by head."""
        return bool(self.attention or (self.relations and not self.relation_heads))

    @property
    def relation_products(self) -> int:
        """Products of queries, keys or values with themselves per pair of layers: one by head, or three by relation head."""
        return 0 if not self.relations else 3 if self.relation_heads else 1

    def pairs(self, depth: int, teacher_depth: int) -> tuple[tuple[int, int], ...]:
        """Return the layers of the student that are matched, each with the teacher's; 0 are the embeddings."""
        match self.layers:
            case "last":
                return ((depth, teacher_depth),)
            case "uniform":
                whole = ((m, (2 * m * teacher_depth + depth) // (2 * depth)) for m in range(depth + 1))
                return tuple(pair for pair in whole if pair[0] or self.of_hidden)
            case _:
                return tuple((int(one), int(other)) for one, other in _PAIR.findall(self.layers))

    def projects(self, student: Architecture, teacher: Architecture) -> bool:
        """Whether the student's hidden states pass through a learned matrix."""
        return bool(self.hidden_mse) and student.width != teacher.width

    def projection_parameters(self, student: Architecture, teacher: Architecture) -> int:
        """Parameters of that matrix, H·H', which the trained model leaves behind."""
        return student.width * teacher.width if self.projects(student, teacher) else 0

    def problem(self, student: Architecture, teacher: Architecture) -> str | None:
        """Why a teacher cannot serve these losses, in words that follow its name, if so."""
        if self and student.enhanced_mask_decoder:
            return "compares layers with its student's, the last of which enhanced_mask_decoder runs otherwise; leave one out"
        pairs = self.pairs(student.depth, teacher.depth)
        if any(one > student.depth or other > teacher.depth for one, other in pairs):
            return f"has {teacher.depth} layers and its student {student.depth}; layers {self.layers} go beyond"
        if self.of_attention and not any(one and other for one, other in pairs):
            return f"has no attention in its embeddings, which layers {self.layers} name; name layers from 1"
        if self.hidden_cosine and student.width != teacher.width:
            return f"has width {teacher.width}, not {student.width}; hidden_cosine needs equal widths, hidden_mse does not"
        if self.weighs_scores and student.heads != teacher.heads:
            remedy = "attention and relations compare head with head; relations with relation_heads need no equal number"
            return f"has {teacher.heads} heads, not {student.heads}; {remedy}"
        for a in (student, teacher):
            if self.relations and self.relation_heads and a.width % self.relation_heads:
                return f"and its student need widths that relation_heads {self.relation_heads} divide, but one is {a.width}"
            if self.of_attention and a.attention_window is not None:
                return "and its student need attention to all tokens; attention and relations compare pairs that a window hides"
        return None

    def flops_per_token(self, student: Architecture, teacher: Architecture, length: int) -> float:
        """FLOPs of the products that the losses add to each token, forward and backward.

        6·H·H' a pair of hidden states for the projection, and per product of scores or relations 6·S·H of the student and
        2·S·H' of the teacher, which has no backward pass.
        """
        pairs = self.pairs(student.depth, teacher.depth)
        attentions = sum(one > 0 and other > 0 for one, other in pairs)
        products = self.weighs_scores + self.relation_products
        weights = self.projection_parameters(student, teacher)
        return 6 * len(pairs) * weights + attentions * products * length * (6 * student.width + 2 * teacher.width)


NO_LOSSES = LayerLosses()
"""No loss between layers."""


def layers_as_text(value: object) -> object:
    """Return a map `{student layer: teacher layer}` as text, such as `1-2,2-4`; other values stay."""
    return ",".join(f"{one}-{other}" for one, other in value.items()) if isinstance(value, dict) else value
