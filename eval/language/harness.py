"""Our models under EleutherAI's lm-evaluation-harness (Gao et al.), for its hundreds of tasks and for YAML files.

    from eval.language.harness import OneblockLM
    import lm_eval
    results = lm_eval.simple_evaluate(OneblockLM.load("runs/mine"), tasks=["hellaswag"])

or `python -m eval harness runs/mine --tasks hellaswag`. The harness's own tasks fetch their data from a hub; files of
one's own read local data (dataset_path: json, with data_files) and need no network.

Likelihoods are those of eval.language.likelihood and eval.perplexity (windows that do not overlap, as the harness
has them), texts those of zoo.generate. Contexts that a chat template wrote hold special pieces as text: there, and only
there, "<|im_end|>" is a piece; inside a message it stays text.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from eval.language.likelihood import beginning, log_likelihoods, require_causal, row_limit, score_causal
from eval.language.token_scores import Watch, row_length
from eval.perplexity import causal_rows
from zoo.errors import InputError, nearest
from zoo.generation.generate import generate
from zoo.model import Model
from zoo.tokenizer import BREAK, Tokenizer

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError:
    raise InputError('the lm-evaluation-harness is not installed; run: pip install "oneblock[harness]"') from None

ROUND = 32  # tokens between looks for a stop string
ROWS = 8  # prompts that are continued together
LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
DRAWING = ("temperature", "top_k", "top_p", "do_sample", "until", *LENGTH_NAMES)


class MarkedTokenizer:
    """A tokenizer that reads special pieces as such in texts that begin with BREAK: those of a chat template."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        pieces = {tokenizer.piece(i): i for i in tokenizer.special_ids if tokenizer.piece(i)}
        self._pieces = pieces
        self._pattern = re.compile("|".join(map(re.escape, sorted(pieces, key=len, reverse=True)))) if pieces else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._tokenizer.encode_batch([text.replace(BREAK, "") for text in texts])
        for number, text in enumerate(texts):
            if text.startswith(BREAK) and self._pattern is not None:
                ids, end = [], 0
                for mark in self._pattern.finditer(text):
                    ids += self._plain(text[end : mark.start()]) + [self._pieces[mark[0]]]
                    end = mark.end()
                found[number] = ids + self._plain(text[end:])
        return found

    def hide(self, text: str) -> str:
        """`text` with its look-alikes of special pieces made plain text."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda mark: mark[0][0] + BREAK + mark[0][1:], text.replace(BREAK, ""))

    def _plain(self, text: str) -> list[int]:
        text = text.replace(BREAK, "")
        return self._tokenizer.encode(text) if text else []


@register_model("oneblock")
class OneblockLM(LM):
    """A causal model of the zoo as the harness wants it.

    Args:
        model, params, tokenizer: as from zoo.load and zoo.load_tokenizer.
        max_length: most tokens that go in; None for the model's positions.
        max_gen_toks: tokens of an answer where a task does not say.
        seed: of answers that are drawn.
        devices: see eval.language.token_scores.
        watch: told of the tokens done by likelihoods.

    Raises:
        InputError: no causal language model, or a tokenizer of another one.
    """

    def __init__(
        self,
        model: Model,
        params: dict[str, Any],
        tokenizer: Tokenizer,
        *,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        seed: int = 0,
        devices: Sequence[jax.Device] | None = None,
        watch: Watch | None = None,
    ):
        super().__init__()
        require_causal(model, tokenizer)
        self.model, self.params, self.tokenizer = model, params, tokenizer
        self.max_length, self.max_gen_toks, self.seed = row_limit(model, max_length), max_gen_toks, seed
        self._options = {"devices": devices, "watch": watch}
        self._marked = MarkedTokenizer(tokenizer)

    @classmethod
    def load(cls, path: str, **options: Any) -> "OneblockLM":
        """From a Hugging Face folder, a GGUF file, a run folder, or an embedded checkpoint's name."""
        from eval.language.language_commands import open_network

        return cls(*open_network(path), **options)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None):
        """What `lm_eval --model oneblock --model_args pretrained=PATH` calls; batches and devices are chosen here."""
        del additional_config
        given = dict(arg_dict)
        if "pretrained" not in given:
            raise InputError("model_args name no checkpoint: pretrained=PATH")
        path, known = given.pop("pretrained"), ("max_length", "max_gen_toks", "seed")
        for name in given:
            if name not in known:
                raise InputError(f'model_args hold "{name}"{nearest(name, known)}')
        return cls.load(path, **given)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None):
        """The same from "pretrained=PATH,max_length=512"."""
        from lm_eval.utils import simple_parse_args_string

        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log p(continuation | context), whether it is what greedy generation gives) of each request."""
        pairs = [tuple(request.args) for request in requests]
        found = log_likelihoods(
            self.model, self.params, self._marked, pairs, max_length=self.max_length, **self._options
        )
        answers = [(one.log_prob, one.greedy) for one in found]
        self._keep("loglikelihood", requests, answers)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """log p of each whole text, in windows of max_length, each token scored once."""
        rows, counts = [], []
        for ids in self.tokenizer.encode_batch([request.args[0] for request in requests]):
            own = causal_rows(self.tokenizer, ids, self.max_length, self.max_length)
            rows, counts = rows + own, [*counts, len(own)]
        vocab_size = self.tokenizer.vocab_size
        scores = iter(score_causal(self.model, self.params, rows, vocab_size=vocab_size, **self._options))
        answers = [math.fsum(float(v) for _ in range(count) for v in next(scores).log_probs) for count in counts]
        self._keep("loglikelihood_rolling", requests, answers)
        return answers

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What follows each context, up to the first of its stop strings (not part of the answer).

        A context that leaves no room for the answer loses its beginning. `do_sample` false, or not given without a
        temperature, is greedy.
        """
        answers = [""] * len(requests)
        kinds: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            kinds.setdefault(repr(sorted(request.args[1].items(), key=str)), []).append(number)
        for numbers in kinds.values():
            numbers.sort(key=lambda n: len(requests[n].args[0]))
            for start in range(0, len(numbers), ROWS):
                part = numbers[start : start + ROWS]
                texts = self._continued([requests[n].args[0] for n in part], requests[part[0]].args[1], part)
                for number, text in zip(part, texts, strict=True):
                    answers[number] = text
        self._keep("generate_until", requests, answers)
        return answers

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation by the checkpoint's template; without a generation prompt the last message is left open."""
        safe = [{**message, "content": self._marked.hide(message["content"])} for message in chat_history]
        if add_generation_prompt or not safe or safe[-1]["role"] != "assistant":
            return BREAK + self.tokenizer.chat_text(safe, add_generation_prompt)
        return BREAK + self.tokenizer.chat_text(safe[:-1], True) + safe[-1]["content"]

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's source, for the harness's records."""
        return self.tokenizer.chat_template if chat_template else None

    @property
    def tokenizer_name(self) -> str:
        """What tells tokenizers apart in the harness's caches."""
        return f"oneblock-{self.tokenizer.fingerprint[:16]}"

    def _keep(self, name: str, requests: Sequence[Any], answers: Sequence[Any]) -> None:
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial(name, request.args, answer)

    def _continued(self, contexts: list[str], settings: dict[str, Any], numbers: list[int]) -> list[str]:
        """Answers to at most ROWS contexts, a few tokens at a time until each has met a stop."""
        stops, steps, sampling = read_settings(settings, self.max_gen_toks)
        room = self.max_length - steps
        if room < 1:
            raise InputError(f"an answer of {steps} tokens leaves no room in the model's {self.max_length} positions")
        prompts = [self._prompt(ids, room) for ids in self._marked.encode_batch(contexts)]
        written: list[list[int]] = [[] for _ in prompts]
        open_rows, done = list(range(len(prompts))), 0
        keys = [jax.random.fold_in(jax.random.key(self.seed), number) for number in numbers]
        while open_rows and done < steps:
            now = min(ROUND, steps - done)
            rows = [(prompts[i] + written[i], jax.random.fold_in(keys[i], done)) for i in open_rows]
            for i, ids, ended in zip(open_rows, *self._round(rows, now, sampling), strict=True):
                written[i] += ids
                text = added_text(self.tokenizer, prompts[i], written[i])
                if ended or any(stop in text for stop in stops):
                    open_rows = [other for other in open_rows if other != i]
            done += now
        texts = [added_text(self.tokenizer, prompt, ids) for prompt, ids in zip(prompts, written, strict=True)]
        return [cut_at(text, stops) for text in texts]

    def _round(
        self, rows: list[tuple[list[int], jax.Array]], steps: int, sampling: dict[str, float]
    ) -> tuple[list[list[int]], list[bool]]:
        """At most `steps` tokens more of each row, and which rows have ended; shapes are few."""
        longest = row_length(max(len(ids) for ids, _ in rows), self.model.config.max_positions - steps)
        padded = [*rows, *[rows[-1]] * (ROWS - len(rows))]
        tokens, mask = np.zeros((ROWS, longest), np.int32), np.zeros((ROWS, longest), np.int32)
        for at, (ids, _) in enumerate(padded):
            tokens[at, longest - len(ids) :], mask[at, longest - len(ids) :] = ids, 1
        found = generate(
            self.model,
            self.params,
            tokens,
            padding_mask=mask,
            max_new_tokens=steps,
            tokenizer=self.tokenizer,
            key=jax.numpy.stack([key for _, key in padded]),
            **sampling,
        )
        lengths = found.lengths[: len(rows)].tolist()
        return [found.tokens[i, :n].tolist() for i, n in enumerate(lengths)], [n < steps for n in lengths]

    def _prompt(self, ids: list[int], room: int) -> list[int]:
        own = bool(ids) and self.tokenizer.adds_bos and ids[0] == self.tokenizer.bos_id
        ids = ids if own else beginning(self.tokenizer, bare=not ids) + ids
        if len(ids) <= room:
            return ids
        return [ids[0], *ids[len(ids) - room + 1 :]] if self.tokenizer.adds_bos else ids[len(ids) - room :]


def read_settings(settings: dict[str, Any], most: int) -> tuple[list[str], int, dict[str, float]]:
    """(stop strings, most tokens, arguments of zoo.generate) of a request.

    Raises:
        InputError: a setting that changes answers and that there is not here.
    """
    for name in settings:
        if name not in DRAWING:
            raise InputError(f'generation_kwargs hold "{name}"{nearest(name, DRAWING)}')
    until = settings.get("until") or []
    stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
    steps = int(next((settings[name] for name in LENGTH_NAMES if settings.get(name) is not None), most))
    temperature = float(settings.get("temperature") or 0.0)
    if settings.get("do_sample") is False or temperature == 0.0:
        return stops, steps, {}
    sampling = {"temperature": temperature}
    sampling |= {name: settings[name] for name in ("top_k", "top_p") if settings.get(name) is not None}
    return stops, steps, sampling


def added_text(tokenizer: Tokenizer, prompt: list[int], new: list[int]) -> str:
    """The text that `new` adds to the prompt's: decoded alone, a first piece would lose the space before it."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + new)
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(new)


def cut_at(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first stop string in it."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]
