"""Parameter counts of published decoders, literally; tests/parity/test_key_tables.py does it tensor by tensor."""

import pytest

from zoo.explain import explain, nearest_neighbour
from zoo.registry import PRESETS
from zoo.summary import summarise

COUNTS = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "smollm3-3b": 3_075_098_624,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    "embeddinggemma-300m": 302_863_104,
    "gemma3-4b": 3_880_263_168,
    "gemma3-12b": 11_766_034_176,
    "gemma3-27b": 27_009_346_304,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-66b": 65_719_701_504,
    "phi3-mini": 3_821_079_552,
    "phi3-medium": 13_960_238_080,
    "phi4": 14_659_507_200,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "stablelm-3b": 2_795_443_200,
    "stablelm-2-1.6b": 1_644_515_328,
    "stablelm-2-12b": 12_143_185_920,
}


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts(name):
    assert summarise(PRESETS[name]).total_parameters == COUNTS[name]


@pytest.mark.parametrize(
    "name, neighbour",
    [
        ("mistral-7b", "llama2-7b"),
        ("gemma2-2b", "gemma-2b"),
        ("opt-125m", "gpt3-small"),
        ("phi3-mini", "llama2-7b"),
        ("stablelm-2-1.6b", "llama2-7b"),
    ],
)
def test_the_nearest_neighbour_of_another_family(name, neighbour):
    assert nearest_neighbour(PRESETS[name], PRESETS) == neighbour


def test_a_pattern_in_words():
    text = explain("gemma3-1b", PRESETS["gemma3-1b"], {"qwen3-0.6b": PRESETS["qwen3-0.6b"]})
    assert "layer_pattern: 5 x window 512, rotary_base 10000.0; global, where qwen3-0.6b has global - " in text
    assert "rotary no" in explain("smollm3-3b", PRESETS["smollm3-3b"], {"gpt2": PRESETS["gpt2"]})
