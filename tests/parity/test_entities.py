"""Entities and their scores are seqeval's in its default mode, on whatever tags."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval import metrics as seqeval

from eval.scores.entities import count_entities, entities, total

TAGS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("x", "y", "geo-loc"))]
BARE = ["O", "B", "I", "E", "S", "I-_", "B-_", "B-x"]
BILOU = ["O", *(f"{prefix}-{kind}" for prefix in "BILU" for kind in "xy")]
ODD = ["O", "B-x", "I-x", "Bat", "bat", "Iat", "B-at", "ORG", "LOC", "OR-G", "b-x", ".", "B-", "I-a-b", "Ia-b"]


@settings(max_examples=300)
@given(
    st.sampled_from([TAGS, BARE, BILOU, ODD]).flatmap(
        lambda tags: st.lists(
            st.lists(st.tuples(st.sampled_from(tags), st.sampled_from(tags)), min_size=1, max_size=8),
            min_size=1,
            max_size=5,
        )
    )
)
def test_scores_are_seqevals(sentences):
    true, predicted = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tags in (*true, *predicted):
            theirs = seqeval.sequence_labeling.get_entities(tags)
            assert entities(tags) == [(kind, start, end + 1) for kind, start, end in theirs]
    counts = count_entities(true, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = seqeval.classification_report(true, predicted, output_dict=True, zero_division=0) if counts else {}
        micro = [seqeval.precision_score, seqeval.recall_score, seqeval.f1_score]
        theirs = [metric(true, predicted, zero_division=0) for metric in micro]
    whole = total(counts)
    assert [whole.precision, whole.recall, whole.f1] == pytest.approx(theirs, abs=1e-12)
    for kind, own in counts.items():
        expected = [found[kind][name] for name in ("precision", "recall", "f1-score", "support")]
        assert [own.precision, own.recall, own.f1, own.true] == pytest.approx(expected, abs=1e-12)
