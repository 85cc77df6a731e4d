"""What requests ask for: OpenAI's fields, those of them that are served, and a few more of sampling."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zoo.generation.sampling import Sampling
from zoo.serve.fields import Fields
from zoo.serve.limits import Refusal

# Fields that change nothing about the answer.
HARMLESS = ("metadata", "prompt_cache_key", "safety_identifier", "user")
# Fields of OpenAI's that are not served, each with the values that ask for nothing: these are taken.
COMPLETION_WITHOUT = {"best_of": (1,), "suffix": ("",)}
CHAT_WITHOUT = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
MESSAGE_WITHOUT = {"audio": (), "function_call": (), "refusal": ("",), "tool_call_id": (), "tool_calls": ([],)}
ROLES = ("system", "developer", "user", "assistant")
MAX_TOP, MAX_STOPS, MAX_STOP_LENGTH, MAX_INPUTS = 20, 16, 1000, 2048
PROMPTS = "a text, a list of texts, a list of ids, or a list of lists of ids"


@dataclass(frozen=True)
class TextsAsked:
    """A request for texts.

    Attributes:
        prompts: texts or lists of ids; of a conversation none.
        messages: of a conversation.
        max_tokens: None for what fits.
        samples: texts a prompt.
        sampling, stop, seed: as in zoo.generate; seed None for one that is drawn.
        top: None without log-probabilities, else how many of the likeliest besides the token itself.
        echo: the prompt is a part of the text.
        stream, with_usage: as events; with a last one of counts.
    """

    prompts: tuple[Any, ...] = ()
    messages: tuple[dict[str, str], ...] = ()
    max_tokens: int | None = None
    samples: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    seed: int | None = None
    top: int | None = None
    echo: bool = False
    stream: bool = False
    with_usage: bool = False


@dataclass(frozen=True)
class VectorsAsked:
    """A request for embeddings: texts or lists of ids; as base64 or as numbers; of how many dimensions, or None."""

    inputs: tuple[Any, ...]
    base64: bool = False
    dimensions: int | None = None


def completion(body: Mapping[str, Any], model: str, limit: int) -> TextsAsked:
    """The fields of POST /v1/completions.

    Args:
        model: the name that is served.
        limit: ids end here.

    Raises:
        Refusal: 400, or 404 where another model is named.
    """
    fields = Fields(body)
    _model(fields, model)
    prompts = _inputs(fields, "prompt")
    top, echo = fields.whole("logprobs", None, 0, 5), fields.flag("echo")
    most = fields.whole("max_tokens", 16, 0)
    if not most and not echo:
        raise fields.refuse("max_tokens", "at least 1, or 0 with echo")
    asked = TextsAsked(prompts=prompts, max_tokens=most, top=top, echo=echo, **_common(fields, limit))
    fields.end(COMPLETION_WITHOUT)
    return _whole(asked, "logprobs")


def conversation(body: Mapping[str, Any], model: str, limit: int) -> TextsAsked:
    """The fields of POST /v1/chat/completions; arguments and errors as in `completion`."""
    fields = Fields(body)
    _model(fields, model)
    messages = _messages(fields)
    older, most = fields.whole("max_tokens", None, 1), fields.whole("max_completion_tokens", None, 1)
    if older is not None and most is not None:
        raise fields.refuse("max_tokens", "left out where max_completion_tokens is given")
    top, flag = fields.whole("top_logprobs", None, 0, MAX_TOP), fields.flag("logprobs")
    if top is not None and not flag:
        raise fields.refuse("top_logprobs", "left out where logprobs is not true")
    asked = TextsAsked(
        messages=messages,
        max_tokens=older if most is None else most,
        top=(top or 0) if flag else None,
        **_common(fields, limit),
    )
    fields.end(CHAT_WITHOUT)
    return _whole(asked, "top_logprobs")


def embeddings(body: Mapping[str, Any], model: str) -> VectorsAsked:
    """The fields of POST /v1/embeddings; errors as in `completion`."""
    fields = Fields(body)
    _model(fields, model)
    inputs = _inputs(fields, "input")
    base64 = fields.choice("encoding_format", "float", ("float", "base64")) == "base64"
    dimensions = fields.whole("dimensions", None, 1)
    _harmless(fields)
    fields.end()
    return VectorsAsked(inputs, base64, dimensions)


def _model(fields: Fields, served: str) -> None:
    name = fields.text("model", served)
    if name != served:
        message = f'there is no model "{name:.80}" here; the one that is served is "{served}"'
        raise Refusal(404, message, param="model", code="model_not_found")


def _harmless(fields: Fields) -> None:
    for name in HARMLESS:
        fields.get(name)


def _inputs(fields: Fields, name: str) -> tuple[Any, ...]:
    value = fields.get(name)
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise fields.refuse(name, PROMPTS)
    if len(value) > MAX_INPUTS and not _is_id(value[0]):
        raise Refusal(400, f'"{name}" has {len(value)} texts; at most {MAX_INPUTS} are read at once', param=name)
    ids = [_is_id(item) for item in value]
    if all(ids):
        return (value,)
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) and item and all(map(_is_id, item)) for item in value):
        return tuple(value)
    raise fields.refuse(name, PROMPTS)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _common(fields: Fields, limit: int) -> dict[str, Any]:
    stop = fields.get("stop", [])
    stop = [stop] if isinstance(stop, str) else stop
    good = isinstance(stop, list) and len(stop) <= MAX_STOPS
    if not good or not all(isinstance(word, str) and 0 < len(word) <= MAX_STOP_LENGTH for word in stop):
        raise fields.refuse("stop", f"a text or a list of up to {MAX_STOPS}, each of 1 to {MAX_STOP_LENGTH} characters")
    stream, options = fields.flag("stream"), fields.inner("stream_options")
    if options is not None and not stream:
        raise fields.refuse("stream_options", "left out where stream is not true")
    with_usage = options is not None and options.flag("include_usage")
    if options is not None:
        options.end({"include_obfuscation": (False,)})
    _harmless(fields)
    sampling = Sampling(
        temperature=fields.number("temperature", 1.0, 0, 2),
        top_p=fields.number("top_p", 1.0, 0, 1),
        top_k=fields.whole("top_k", 0, 0, limit),
        min_p=fields.number("min_p", 0.0, 0, 1),
        presence_penalty=fields.number("presence_penalty", 0.0, -2, 2),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2, 2),
        repetition_penalty=fields.number("repetition_penalty", 1.0, 0.01, 100),
        logit_bias=fields.biases("logit_bias", limit),
        vocab_limit=limit,
    )
    return {
        "samples": fields.whole("n", 1, 1),
        "sampling": sampling,
        "stop": tuple(stop),
        "seed": fields.whole("seed", None, 0, 2**32 - 1),
        "stream": stream,
        "with_usage": with_usage,
    }


def _whole(asked: TextsAsked, name: str) -> TextsAsked:
    # The likeliest besides the drawn are found in one pass over the finished text.
    if asked.stream and (asked.top or (asked.top is not None and asked.echo)):
        message = f'"{name}" of the likeliest tokens or of the prompt is not supported with "stream"'
        raise Refusal(400, message, param=name, code="unsupported_value")
    return asked


def _messages(fields: Fields) -> tuple[dict[str, str], ...]:
    value = fields.get("messages")
    if not isinstance(value, list) or not value:
        raise fields.refuse("messages", "a list of objects with role and content, at least one")
    found = []
    for number, message in enumerate(value):
        if not isinstance(message, dict):
            raise fields.refuse("messages", "a list of objects with role and content")
        one = Fields(message, f"messages[{number}].")
        role = one.choice("role", "", ROLES)
        one.text("name")
        content = one.get("content")
        if isinstance(content, list):
            content = "".join(_part(part, f"messages[{number}].content[{i}].") for i, part in enumerate(content))
        if not isinstance(content, str):
            raise one.refuse("content", "a text, or a list of parts of type text")
        one.end(MESSAGE_WITHOUT)
        found.append({"role": "system" if role == "developer" else role, "content": content})
    return tuple(found)


def _part(part: Any, where: str) -> str:
    one = Fields(part if isinstance(part, dict) else {}, where)
    one.choice("type", "", ("text",))
    text = one.text("text")
    if text is None:
        raise one.refuse("text", "a text")
    one.end()
    return text
