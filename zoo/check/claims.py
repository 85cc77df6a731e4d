"""What a certificate is made of: claims, each with the number that was measured and the bound it must keep to."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

SEEN = 1e-6
LUCK = 14.0


class Measured(NamedTuple):
    """What checking a claim gave; fields as of Claim."""

    passed: bool | None
    measured: str
    bound: str = ""
    number: float | None = None
    limit: float | None = None


class NotApplicable(Exception):
    """A claim that says nothing about this model; the message says why."""


@dataclass(frozen=True)
class Claim:
    """One thing that was checked.

    Attributes:
        name: what is claimed.
        passed: None where it does not apply, or where a number is only told.
        measured: the number found, or why the claim does not apply.
        bound: what it must keep to; "" where there is none.
        number, limit: the numbers in those words; None where there is none.
    """

    name: str
    passed: bool | None
    measured: str
    bound: str = ""
    number: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Certificate:
    """All claims about one checkpoint; sound if none failed."""

    claims: tuple[Claim, ...]

    @property
    def passed(self) -> bool:
        return all(claim.passed is not False for claim in self.claims)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, ready for JSON, which has no infinity: a number that is not finite is None."""
        claims = [dict(vars(claim)) for claim in self.claims]
        for claim in claims:
            for name in ("number", "limit"):
                if claim[name] is not None and not math.isfinite(claim[name]):
                    claim[name] = None
        return {"passed": self.passed, "claims": claims}


def difference(ours: Any, reference: Any) -> float:
    """The largest one, as a part of the largest reference number (or of 1); infinite where anything is not finite."""
    ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    if ours.shape != reference.shape or not (np.isfinite(ours).all() and np.isfinite(reference).all()):
        return math.inf
    return float(np.abs(ours - reference).max(initial=0.0) / max(1.0, np.abs(reference).max(initial=0.0)))


def drift(num_layers: int, embed_dim: int) -> float:
    """How far two programs of the same numbers may be apart: twice 6e-8 sqrt(2 L D), and 1e-5 at least."""
    return max(1e-5, 1.2e-7 * math.sqrt(2 * num_layers * embed_dim))
