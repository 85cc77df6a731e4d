"""Parameters of the encoder and vision presets, as literal numbers: those of the published models."""

import pytest

from zoo.registry import PRESETS
from zoo.summary import count_parameters

# With the heads that are published: masked LM, ELECTRA's discriminator, 1000 classes of images, DINOv2's bare network.
COUNTS = {
    "roberta-base": 124_697_433,
    "roberta-large": 355_412_057,
    "xlm-roberta-base": 278_295_186,
    "xlm-roberta-large": 560_142_482,
    "distilbert-base": 66_985_530,
    "albert-base-v2": 11_221_680,
    "albert-large-v2": 16_795_824,
    "albert-xlarge-v2": 54_821_040,
    "albert-xxlarge-v2": 206_368_944,
    "electra-small": 13_549_057,
    "electra-base": 109_483_009,
    "electra-large": 335_142_913,
    "electra-small-generator": 13_546_682,
    "electra-base-generator": 33_740_602,
    "electra-large-generator": 51_295_290,
    "modernbert-base": 149_655_232,
    "modernbert-large": 395_881_664,
    "vit-tiny": 5_717_416,
    "vit-small": 22_050_664,
    "vit-base": 86_567_656,
    "vit-large": 304_326_632,
    "vit-huge": 632_045_800,
    "deit-tiny": 5_910_800,
    "deit-small": 22_436_432,
    "deit-base": 87_338_192,
    "dinov2-small": 22_056_576,
    "dinov2-base": 86_580_480,
    "dinov2-large": 304_368_640,
    "dinov2-giant": 1_136_480_768,
    "dinov2-small-registers": 22_058_112,
    "dinov2-base-registers": 86_583_552,
    "dinov2-large-registers": 304_372_736,
    "dinov2-giant-registers": 1_136_486_912,
}


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts(name):
    assert sum(count_parameters(PRESETS[name]).values()) == COUNTS[name]
