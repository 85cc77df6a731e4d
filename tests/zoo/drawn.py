"""What sampling should draw from, in plain Python from its definition, and the test of draws against it."""

import numpy as np
from scipy.stats import chi2


def shares(
    logits,
    prompt=(),
    generated=(),
    *,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    logit_bias=None,
    banned=(),
) -> np.ndarray:
    """float64 [V]: the probability of each id to come next."""
    scores = [float(logit) for logit in logits]
    for i, added in (logit_bias or {}).items():
        scores[i] += added
    for i in {*prompt, *generated}:
        scores[i] = scores[i] / repetition_penalty if scores[i] > 0 else scores[i] * repetition_penalty
    for i in generated:
        scores[i] -= frequency_penalty
    for i in set(generated):
        scores[i] -= presence_penalty
    weights = np.exp((np.array(scores) - max(scores)) / temperature)
    weights[list(banned)] = 0.0
    order = sorted(range(len(scores)), key=lambda i: (-weights[i], i))
    order = order[: top_k or len(order)]
    whole, reached, kept = sum(weights[i] for i in order), 0.0, []
    for i in order:
        if kept and reached >= top_p * whole:
            break
        kept.append(i)
        reached += weights[i]
    kept = [i for i in kept if weights[i] >= min_p * weights[kept[0]]]
    found = np.zeros(len(scores))
    found[kept] = weights[kept] / sum(weights[kept])
    return found


def check_draws(seen: np.ndarray, expected: np.ndarray, least: float = 1e-3) -> None:
    """Chi-square of counts against expected ones; what is rare is counted together, the impossible not there.

    Args:
        seen, expected: [C], of the same sum.
        least: probability of draws so far off, below which they are not from there.
    """
    assert seen[expected == 0].sum() == 0
    often = expected >= 5
    seen, expected = (np.append(x[often], x[~often].sum()) for x in (seen, expected))
    there = expected > 0
    statistic = ((seen - expected)[there] ** 2 / expected[there]).sum()
    assert chi2.sf(statistic, max(there.sum() - 1, 1)) > least
