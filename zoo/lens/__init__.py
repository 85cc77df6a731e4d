"""Looking inside a model, and changing what is found there: pure functions over the sites of zoo.probe.

    from zoo import lens
    trace = lens.run(model, params, tokens, sites=("blocks.*.out", "blocks.3.attention.weights"))
    trace.values["blocks.*.out"]                                      # [L, B, T, D]
    lens.run(model, params, tokens, interventions=lens.ablate(heads=[(3, 5)])).output.logits
"""

from zoo.lens.attribution import Attribution, attribution
from zoo.lens.induction import induction_scores
from zoo.lens.interventions import Intervention, ablate, patch, steer
from zoo.lens.logits import logit_lens, read_out
from zoo.lens.patching import LogitDifference, Patching, patching
from zoo.lens.paths import path_patching
from zoo.lens.steering import steering_vector
from zoo.lens.trace import Trace, run, sites

__all__ = [
    "Attribution",
    "Intervention",
    "LogitDifference",
    "Patching",
    "Trace",
    "ablate",
    "attribution",
    "induction_scores",
    "logit_lens",
    "patch",
    "patching",
    "path_patching",
    "read_out",
    "run",
    "sites",
    "steer",
    "steering_vector",
]
