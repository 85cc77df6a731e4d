"""Reading config.json: every setting is taken, or known not to change the numbers, or refused by name.

A setting that a loader does not know and passes over is how a model comes to run with the wrong rotary scaling. So a
family's reader takes what it understands, says which values of the rest it accepts, and `done()` refuses what is left.
"""

import re
from typing import Any

from zoo.errors import InputError, nearest

# Settings of every family that do not change the numbers of a forward pass.
HARMLESS = frozenset(
    """
    architectures model_type transformers_version torch_dtype dtype _name_or_path name_or_path
    use_cache pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id unk_token_id
    decoder_start_token_id forced_bos_token_id forced_eos_token_id output_attentions output_hidden_states return_dict
    return_dict_in_generate output_scores id2label label2id num_labels problem_type task_specific_params
    finetuning_task gradient_checkpointing torchscript use_bfloat16 tf_legacy_loss tokenizer_class prefix
    chunk_size_feed_forward attn_implementation _attn_implementation _attn_implementation_autoset _commit_hash
    transformers.js_config unsloth_version unsloth_fixed max_length min_length do_sample early_stopping num_beams
    num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens tie_last_hidden_states
    _num_labels xla_device max_sequence_length language name sbert_ce_default_activation_function sentence_transformers
    """.split()
)

# Words for activations. gelu_fast is the tanh form with its constant written out.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
PUBLISHED_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}

# Settings of every family that we accept at these values alone.
FIXED: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "per_layer_config": ({},),
}


LARGEST = 10**12
TOKEN_ID = re.compile(r"(bos|eos|pad|sep|cls|mask|unk|decoder_start)_token_id")


class Settings:
    """The settings of one config.json, each to be taken once.

    Args:
        values: the parsed file; null counts as not set.
        where: the file, for messages.
        family: for messages.
    """

    def __init__(self, values: dict[str, Any], where: str, family: str):
        self.values = {name: value for name, value in values.items() if value is not None}
        self.nulls = {name for name, value in values.items() if value is None}
        self.where, self.family = where, family
        self.known: set[str] = set(HARMLESS)

    def fault(self, message: str) -> InputError:
        return InputError(f"{self.where}: {message}")

    def _take(self, name: str, old_names: tuple[str, ...], default: Any) -> Any:
        self.known |= {name, *old_names}
        given = [(key, self.values[key]) for key in (name, *old_names) if key in self.values]
        for key, value in given[1:]:
            if value != given[0][1]:
                raise self.fault(f"{given[0][0]} is {given[0][1]!r} but {key} is {value!r}; they are one setting")
        return given[0][1] if given else default

    def is_null(self, name: str) -> bool:
        """Whether the file sets `name` to null, which some settings tell from not set at all."""
        return name in self.nulls

    def whole(self, name: str, default: int | None, *old_names: str) -> Any:
        """A whole number above 0 (or `default`)."""
        value = self._take(name, old_names, default)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise self.fault(f"{name} is {value!r}; it must be a whole number of 1 or more")
        if value is not None and value > LARGEST:
            raise self.fault(f"{name} is above {LARGEST:.0e}; no model is so large")
        return value

    def count(self, name: str, default: int) -> int:
        """A whole number of 0 or more."""
        value = self._take(name, (), default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.fault(f"{name} is {value!r}; it must be a whole number of 0 or more")
        return value

    def number(self, name: str, default: float | None, *old_names: str) -> Any:
        """A finite number (or `default`)."""
        value = self._take(name, old_names, default)
        if value is not None and not is_number(value):
            raise self.fault(f"{name} is {value!r}; it must be a number")
        return None if value is None else float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._take(name, (), default)
        if not isinstance(value, bool):
            raise self.fault(f"{name} is {value!r}; it must be true or false")
        return value

    def choice(self, name: str, default: str, choices: dict[str, str]) -> str:
        """The value that `choices` gives for the word in the file."""
        value = self._take(name, (), default)
        if not isinstance(value, str) or value not in choices:
            raise self.fault(f"{name} is {value!r}, which is not supported{nearest(str(value), choices)}")
        return choices[value]

    def only(self, name: str, *accepted: Any) -> None:
        """Refuses any value but `accepted`; not set is fine."""
        self.known.add(name)
        value = self.values.get(name, accepted[0])
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in accepted):
            raise self.fault(f"{name} is {value!r}, which is not supported; {accepted[0]!r} is")

    def ignore(self, *names: str) -> None:
        """Settings of this family that do not change the numbers."""
        self.known |= set(names)

    def num_labels(self) -> int:
        """How many labels a classifier has: num_labels, else the length of id2label, else 2."""
        table = self.values.get("id2label")
        return self.whole("num_labels", len(table) if isinstance(table, dict) and table else 2)

    def labels(self, num_labels: int) -> tuple[str, ...]:
        """Label names in order of their index, from id2label; () where there are none or only placeholders."""
        table = self.values.get("id2label")
        if not isinstance(table, dict):
            return ()
        try:
            names = {int(index): str(name) for index, name in table.items()}
        except ValueError:
            raise self.fault("id2label has a key that is no whole number") from None
        if set(names) != set(range(num_labels)):
            raise self.fault(f"id2label names {len(names)} labels but the classifier has {num_labels}")
        if all(name == f"LABEL_{index}" for index, name in names.items()):
            return ()
        return tuple(names[index] for index in range(num_labels))

    def done(self) -> None:
        """Refuses the settings that nobody took.

        Raises:
            InputError: naming all of them.
        """
        for name, accepted in FIXED.items():
            self.only(name, *accepted)
        for name, value in self.values.items():
            if TOKEN_ID.fullmatch(name) and not is_token_ids(value):
                raise self.fault(f"{name} is {value!r}; it must be a whole number, or a list of them")
        left = sorted(set(self.values) - self.known)
        if left:
            shown = ", ".join(f"{name}={self.values[name]!r}"[:60] for name in left[:10])
            many = f"{len(left)} settings are" if len(left) > 1 else "a setting is"
            hint = nearest(left[0], sorted(self.known))
            raise self.fault(
                f"{many} unknown to {self.family} and may change the numbers: {shown}"
                f"{hint if 'did you mean' in hint else ''}"
            )


def is_token_ids(value: Any) -> bool:
    """Whether `value` can be a token id, or several (-1 is written for none)."""
    found = value if isinstance(value, list) else [value]
    return all(isinstance(one, int) and not isinstance(one, bool) and one >= -1 for one in found)


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number (true and false are none)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
