"""Tiny decoders of the reference library: LLaMA's relatives, every rotary scaling, classifiers of the last token."""

from typing import Any

from tests.parity.reference import GPT, GROUPED, Case

# Rows of tests/parity/test_decoders.py are 70, 55 and 40 tokens long: beyond the windows and the trained lengths here.
WINDOW = 16
TRAINED = 48


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return dict(rope_theta=10000.0, rope_type=kind) | settings


def factors(start: float, step: float, count: int = 16) -> list[float]:
    return [start + step * index for index in range(count)]


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=TRAINED)
LONG = rope(
    "longrope",
    short_factor=factors(1.0, 0.05),
    long_factor=factors(1.5, 0.4),
    original_max_position_embeddings=TRAINED,
)
GEMMA = GROUPED | dict(head_dim=16, pad_token_id=None)
GEMMA3 = GEMMA | dict(num_hidden_layers=5, sliding_window=WINDOW, sliding_window_pattern=3)
NEOX = dict(
    vocab_size=97,
    hidden_size=48,
    num_attention_heads=3,
    num_hidden_layers=2,
    intermediate_size=80,
    max_position_embeddings=256,
)
OPT = dict(
    vocab_size=97,
    hidden_size=48,
    num_attention_heads=4,
    num_hidden_layers=2,
    ffn_dim=80,
    max_position_embeddings=72,
    pad_token_id=None,
)
NARROW = dict(word_embed_proj_dim=20, do_layer_norm_before=False)  # as the 350M model
PHI = GROUPED | dict(hidden_size=96, num_attention_heads=6, pad_token_id=None)
PHI.pop("head_dim")
STABLE = dict(PHI)
STABLE.pop("rms_norm_eps")
LABELS = dict(id2label={0: "no", 1: "yes", 2: "perhaps"}, pad_token_id=0)
SPANS = dict(pad_token_id=0)
MULTI = GROUPED | dict(num_key_value_heads=6)

CASES = {
    "mistral": Case("MistralForCausalLM", GROUPED, dict(sliding_window=WINDOW), 20),
    "mistral-no-window": Case("MistralForCausalLM", GROUPED, dict(sliding_window=None, tie_word_embeddings=True), 21),
    "mistral-backbone": Case("MistralModel", GROUPED | dict(num_key_value_heads=1), dict(sliding_window=WINDOW), 22),
    "qwen2": Case("Qwen2ForCausalLM", GROUPED | dict(tie_word_embeddings=True), {}, 23),
    "qwen2-window": Case(
        "Qwen2ForCausalLM",
        MULTI | dict(num_hidden_layers=3),
        dict(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
        24,
    ),
    "qwen3": Case("Qwen3ForCausalLM", GROUPED, dict(attention_bias=True), 25),
    "qwen3-layer-types": Case(
        "Qwen3ForCausalLM",
        GROUPED | dict(tie_word_embeddings=True, num_hidden_layers=3),
        dict(
            use_sliding_window=True,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        26,
    ),
    "smollm3": Case("SmolLM3ForCausalLM", GROUPED | dict(num_hidden_layers=5), dict(pad_token_id=None), 27),
    "smollm3-window": Case(
        "SmolLM3ForCausalLM",
        GROUPED | dict(num_hidden_layers=3, pad_token_id=None, attention_bias=True, mlp_bias=True),
        dict(no_rope_layers=[0, 1, 0], use_sliding_window=True, sliding_window=WINDOW),
        28,
    ),
    "dynamic": Case(
        "LlamaForCausalLM",
        GROUPED | dict(max_position_embeddings=TRAINED),
        dict(rope_parameters=rope("dynamic", factor=4.0)),
        29,
    ),
    "yarn": Case("LlamaForCausalLM", GROUPED, dict(rope_parameters=YARN), 30),
    "yarn-all-keys": Case(
        "Qwen2ForCausalLM",
        GROUPED,
        dict(
            rope_parameters=YARN
            | dict(beta_fast=16.0, beta_slow=2.0, mscale=1.4, mscale_all_dim=0.7, truncate=False)
        ),
        31,
    ),
    "longrope": Case("LlamaForCausalLM", GROUPED, dict(rope_parameters=LONG | dict(factor=8.0)), 32),
    "longrope-attention-factor": Case(
        "MistralForCausalLM",
        GROUPED | dict(sliding_window=WINDOW),
        dict(rope_parameters=LONG | dict(attention_factor=1.3)),
        33,
    ),
    "gemma": Case("GemmaForCausalLM", GEMMA | dict(num_key_value_heads=1), {}, 38),
    "gemma-untied": Case("GemmaForCausalLM", GEMMA, dict(tie_word_embeddings=False, attention_bias=True), 39),
    "gemma2": Case(
        "Gemma2ForCausalLM",
        GEMMA | dict(num_hidden_layers=3),
        dict(sliding_window=WINDOW, query_pre_attn_scalar=24, attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
        40,
    ),
    "gemma2-no-caps": Case(
        "Gemma2ForCausalLM",
        GEMMA,
        dict(
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            hidden_activation="gelu",
            query_pre_attn_scalar=16,
            sliding_window=WINDOW,
            layer_types=["full_attention", "sliding_attention"],
        ),
        41,
    ),
    "gemma3": Case("Gemma3ForCausalLM", GEMMA3, dict(query_pre_attn_scalar=24), 42),
    "gemma3-scaled": Case(
        "Gemma3ForCausalLM",
        GEMMA3,
        dict(
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=8.0, rope_theta=50000.0),
                sliding_attention=dict(rope_type="default", rope_theta=500.0),
            ),
            final_logit_softcapping=4.0,
        ),
        43,
    ),
    "gemma3-both-ways": Case(
        "Gemma3TextModel", GEMMA3, dict(sliding_window=15, use_bidirectional_attention=True), 93
    ),
    "neox": Case("GPTNeoXForCausalLM", NEOX, {}, 44),
    "neox-one-after-the-other": Case(
        "GPTNeoXForCausalLM",
        NEOX,
        dict(
            use_parallel_residual=False,
            attention_bias=False,
            hidden_act="gelu_new",
            rope_parameters=rope("linear", factor=2.0, partial_rotary_factor=0.5),
            tie_word_embeddings=True,
        ),
        45,
    ),
    "opt": Case("OPTForCausalLM", OPT, {}, 46),
    "opt-post-norm": Case("OPTForCausalLM", OPT, dict(do_layer_norm_before=False, activation_function="gelu"), 47),
    "opt-no-biases": Case("OPTForCausalLM", OPT, dict(enable_bias=False, tie_word_embeddings=False), 48),
    "opt-350m": Case("OPTForCausalLM", OPT, NARROW, 68),
    "opt-350m-untied": Case(
        "OPTForCausalLM", OPT, dict(word_embed_proj_dim=64, enable_bias=False, tie_word_embeddings=False), 69
    ),
    "opt-350m-backbone": Case("OPTModel", OPT, NARROW | dict(tie_word_embeddings=False), 70),
    "phi3": Case("Phi3ForCausalLM", PHI, dict(sliding_window=WINDOW), 49),
    "phi3-longrope": Case(
        "Phi3ForCausalLM",
        PHI | dict(num_key_value_heads=6),
        dict(
            original_max_position_embeddings=TRAINED,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=10000.0,
                partial_rotary_factor=0.75,
                short_factor=factors(1.0, 0.05, 6),
                long_factor=factors(1.5, 0.4, 6),
            ),
            tie_word_embeddings=True,
        ),
        50,
    ),
    "olmo2": Case("Olmo2ForCausalLM", PHI, {}, 51),
    "olmo2-biases": Case("Olmo2ForCausalLM", PHI | dict(num_key_value_heads=1), dict(attention_bias=True), 52),
    "stablelm": Case("StableLmForCausalLM", STABLE, {}, 53),
    "stablelm-parallel": Case(
        "StableLmForCausalLM",
        STABLE,
        dict(use_qkv_bias=True, use_parallel_residual=True, partial_rotary_factor=0.5, tie_word_embeddings=True),
        54,
    ),
    "stablelm-2-12b": Case("StableLmForCausalLM", STABLE, dict(qk_layernorm=True, use_parallel_residual=True), 71),
    "stablelm-head-norms": Case("StableLmForCausalLM", STABLE, dict(qk_layernorm=True, use_qkv_bias=True), 72),
    "mixtral": Case("MixtralForCausalLM", GROUPED | dict(num_local_experts=5), {}, 66),
    "mixtral-three-of-four": Case(
        "MixtralForCausalLM",
        GROUPED | dict(sliding_window=WINDOW),
        dict(num_local_experts=4, num_experts_per_tok=3, tie_word_embeddings=True),
        67,
    ),
    "llama-classifier": Case("LlamaForSequenceClassification", GROUPED, LABELS, 34),
    "mistral-classifier": Case("MistralForSequenceClassification", GROUPED, LABELS | dict(sliding_window=WINDOW), 35),
    "qwen2-classifier": Case("Qwen2ForSequenceClassification", GROUPED, LABELS, 36),
    "qwen3-classifier": Case("Qwen3ForSequenceClassification", GROUPED, LABELS, 37),
    "gemma-classifier": Case("GemmaForSequenceClassification", GEMMA, LABELS, 55),
    "gemma2-classifier": Case("Gemma2ForSequenceClassification", GEMMA, LABELS | dict(sliding_window=WINDOW), 56),
    "gemma3-classifier": Case("Gemma3TextForSequenceClassification", GEMMA3, LABELS, 57),
    "gpt2-classifier": Case("GPT2ForSequenceClassification", GPT, LABELS, 58),
    "gpt1-classifier": Case("OpenAIGPTForSequenceClassification", GPT, LABELS, 59),
    "neox-classifier": Case("GPTNeoXForSequenceClassification", NEOX, LABELS, 60),
    "opt-classifier": Case("OPTForSequenceClassification", OPT, LABELS, 61),
    "opt-350m-classifier": Case("OPTForSequenceClassification", OPT, LABELS | NARROW, 73),
    "phi3-classifier": Case("Phi3ForSequenceClassification", PHI, LABELS, 62),
    "olmo2-classifier": Case("Olmo2ForSequenceClassification", PHI, LABELS, 63),
    "stablelm-classifier": Case("StableLmForSequenceClassification", STABLE, LABELS, 64),
    "smollm3-classifier": Case("SmolLM3ForSequenceClassification", GROUPED, LABELS, 65),
    "llama-tokens": Case("LlamaForTokenClassification", GROUPED, LABELS, 85),
    "llama-spans": Case("LlamaForQuestionAnswering", GROUPED, SPANS, 86),
    "mistral-spans": Case("MistralForQuestionAnswering", GROUPED, SPANS | dict(sliding_window=WINDOW), 87),
    "gpt2-tokens": Case("GPT2ForTokenClassification", GPT, LABELS | dict(classifier_dropout=0.3), 88),
    "gpt2-spans": Case("GPT2ForQuestionAnswering", GPT, SPANS, 89),
    "neox-tokens": Case("GPTNeoXForTokenClassification", NEOX, LABELS, 90),
    "neox-spans": Case("GPTNeoXForQuestionAnswering", NEOX, SPANS, 91),
    "opt-350m-spans": Case("OPTForQuestionAnswering", OPT, SPANS | NARROW, 92),
}
