"""Reading a config.json from a dict, and the one line of one that is refused: for the tests of settings."""

from pathlib import Path

import pytest

from zoo.checkpoints.hugging_face import FORMATS, read_config
from zoo.errors import InputError


def read(values, names=()):
    form = FORMATS[values["model_type"]]
    return read_config(values, form, dict.fromkeys(names), Path("folder"))


def refusal(values) -> str:
    with pytest.raises(InputError) as error:
        read(values)
    text = str(error.value)
    assert "\n" not in text and text.startswith("folder/config.json: ")
    return text
