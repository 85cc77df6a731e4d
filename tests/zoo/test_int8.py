"""Int8 weights: the decomposition is an identity but for the rounding, whose bound holds; outlier columns are exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zoo
from zoo import cli, int8
from zoo.calibration import sample_rows
from zoo.checkpoints import plain_folder, run_folder
from zoo.command_line import run
from zoo.errors import InputError
from zoo.explain import differences
from zoo.layer_config import Int8
from zoo.stack import unstack_layers
from zoo.summary import weight_bytes

SIZES = dict(embed_dim=48, num_layers=3, num_heads=4, num_kv_heads=2, mlp_dim=80, vocab_size=97, max_positions=64)
MODEL = zoo.create("llama-tiny", **SIZES)
PARAMS = MODEL.init(jax.random.key(0))
TOKENS = np.random.default_rng(1).integers(0, 97, (2, 16))


def filled(q, scale, columns, rows):
    """The matrix that an int8 kernel stands for."""
    matrix = np.asarray(q, np.float64) * np.asarray(scale, np.float64)
    matrix[np.asarray(columns)] = rows
    return matrix


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 7), st.integers(0, 4))
def test_rounding_moves_a_weight_by_half_a_scale_at_most(seed, inputs, outputs, kept):
    rng = np.random.default_rng(seed)
    matrix = (rng.standard_normal((inputs, outputs)) * 10.0 ** rng.integers(-3, 3, (inputs, 1))).astype(np.float32)
    columns = np.sort(rng.permutation(inputs)[:kept])
    q, scale, rows = int8.rounded(matrix, columns)
    assert q.dtype == np.int8 and np.abs(q).max(initial=0) <= 127
    found = filled(q, scale, columns, rows)
    np.testing.assert_array_equal(found[columns], matrix[columns])  # outlier columns are exact
    assert (q[columns] == 0).all()
    assert (np.abs(found - matrix) <= scale / 2 * (1 + 1e-5)).all()
    rest = np.delete(np.abs(matrix), columns, axis=0)
    np.testing.assert_allclose(scale, rest.max(axis=0, initial=0) / 127, rtol=1e-6)  # outliers do not widen it


def test_an_output_is_off_by_half_a_scale_times_the_inputs_at_most():
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((24, 10)).astype(np.float32)
    x = rng.standard_normal((5, 24)).astype(np.float32)
    x[:, 3] *= 100  # an outlier: nearly all of the bound
    for columns in ([], [3]):
        q, scale, rows = int8.rounded(matrix, np.array(columns, np.int32))
        found = int8.product(jnp.asarray(x), *map(jnp.asarray, (q, scale, np.array(columns, np.int32), rows)))
        reach = np.delete(np.abs(x), columns, axis=1).sum(axis=1, keepdims=True) * scale / 2
        assert (np.abs(np.asarray(found) - x @ matrix) <= reach + 1e-4).all()
    assert np.abs(np.asarray(found) - x @ matrix).max() < 0.1


@pytest.mark.parametrize(("inputs", "out", "rows"), [(301, 100, 3), (7, 3, 1), (1, 5, 2)])
def test_activations_keep_sixteen_bits_whatever_the_outliers_are(inputs, out, rows):
    """Off by a 64,516th of a row's largest ordinary activation for each input, and a row is alike in any batch."""
    rng = np.random.default_rng(inputs)
    q = rng.integers(-127, 128, (inputs, out)).astype(np.int8)
    x = (rng.standard_normal((rows, inputs)) * 10.0 ** rng.integers(-4, 4, (rows, 1))).astype(np.float32)
    x[-1] = 0
    columns = jnp.arange(0, inputs, 5)[: inputs - 1]
    q[columns] = 0
    bound = np.abs(np.delete(x, columns, axis=1)).max(1, keepdims=True) / 64_516 * np.abs(q.astype(np.float32)).sum(0)
    expected = x.astype(np.float64) @ q
    x[:-1, columns] = 1e30  # these count elsewhere
    found = int8._whole(jnp.asarray(x), jnp.asarray(q), columns)
    assert (np.abs(np.asarray(found, np.float64) - expected) <= bound * 1.01 + 1e-6 * np.abs(expected)).all()
    by_rows = int8._whole(jnp.asarray(x), jnp.asarray(np.ascontiguousarray(q.T)), columns, by_rows=True)
    np.testing.assert_array_equal(by_rows, found)
    np.testing.assert_array_equal(int8._whole(jnp.asarray(x[:1]), jnp.asarray(q), columns), found[:1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_of_several_axes(dtype):
    rng = np.random.default_rng(2)
    matrix = rng.standard_normal((4, 6, 5)).astype(np.float32)  # as attention's out: [N, H, D]
    columns = np.array([1, 20], np.int32)
    q, scale, rows = int8.rounded(matrix.reshape(24, 5), columns)
    x = jnp.asarray(rng.standard_normal((2, 3, 4, 6)), dtype)
    found = int8.product(x, jnp.asarray(q.reshape(4, 6, 5)), *map(jnp.asarray, (scale, columns, rows)))
    assert found.shape == (2, 3, 5) and found.dtype == jnp.float32
    exact = np.asarray(x, np.float64).reshape(2, 3, 24) @ filled(q, scale, columns, rows)
    # Activations keep 16 bits: a 64,516th of 2.5 for each of 24 inputs, by weights of up to 2.5.
    np.testing.assert_allclose(found, exact, rtol=0, atol=5e-4)


def dequantised(params):
    """The float tree that an int8 one stands for."""
    if not isinstance(params, dict):
        return params
    if "kernel_scale" in params:
        q, scale, columns, rows = (np.asarray(params[name]) for name in INT8_NAMES)
        inputs = int(np.prod(q.shape[: q.ndim - scale.ndim]))
        matrix = filled(q.reshape(inputs, -1), scale.reshape(-1), columns, rows.reshape(len(columns), scale.size))
        rest = {name: leaf for name, leaf in params.items() if name not in INT8_NAMES}
        return rest | {"kernel": matrix.reshape(q.shape).astype(np.float32)}
    if "embedding_scale" in params:
        names = ("embedding", "embedding_scale", "outlier_columns", "outlier_embedding")
        q, scale, columns, kept = (np.asarray(params[name]) for name in names)
        return {"embedding": filled(q.T, scale, columns, kept.T).T.astype(np.float32)}
    return {name: dequantised(below) for name, below in params.items()}


INT8_NAMES = ("kernel", "kernel_scale", "outlier_columns", "outlier_kernel")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-tiny", {}),
        ("llama-tiny", {"scan": True}),
        ("llama-tiny", {"tie_embeddings": False, "dtype": "float32"}),
        ("gpt-tiny", {}),
        ("bert-tiny", {"head": "masked_lm"}),
        ("mixtral-tiny", {}),
        ("albert-tiny", {"embed_rank": 32}),
    ],
)
def test_a_model_equals_the_float_one_that_it_stands_for(name, changes):
    sizes = SIZES | ({"num_kv_heads": 4} if name.startswith(("gpt", "bert", "albert")) else {})
    model = zoo.create(name, **sizes | changes)
    params = model.init(jax.random.key(3))
    small, quantised = zoo.quantize(model, params, calibration=TOKENS, threshold=2.0)
    looped = unstack_layers(quantised, small.config) if small.config.scan else quantised
    meant = dequantised(looped)
    plain = zoo.create(model.config.replace(scan=False))
    expected = plain.apply(meant, TOKENS).logits
    np.testing.assert_allclose(small.apply(quantised, TOKENS).logits, expected, rtol=0, atol=5e-5)
    np.testing.assert_allclose(
        small.unembed(quantised, small.apply(quantised, TOKENS).hidden), expected, rtol=0, atol=5e-5
    )
    kinds = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), quantised)
    assert kinds == jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), small.init_shapes())
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(quantised)) == weight_bytes(small.config)
    assert zoo.ModelConfig.from_dict(small.config.to_dict()) == small.config
    assert [field for field, _, _ in differences(small.config, model.config)] == ["int8"]


def test_outliers_are_where_the_activations_are_large():
    params = jax.tree.map(np.array, PARAMS)
    params["blocks"]["layer_1"]["attention_norm"]["scale"][[5, 40]] = 30.0
    params["blocks"]["layer_2"]["mlp_norm"]["scale"][7] = 30.0
    small, quantised = zoo.quantize(MODEL, params, calibration=TOKENS)
    nothing = (0, 0, 0)
    assert small.config.int8 == Int8((0, 2, 0), nothing, (0, 0, 1), nothing, table=0)
    scanned = MODEL.config.replace(scan=True)
    stacked = zoo.quantize(zoo.create(scanned), zoo.stack_layers(params, scanned), calibration=TOKENS)
    assert stacked[0].config.int8 == Int8(2, 0, 1, 0, table=0)
    assert stacked[1]["blocks"]["mlp"]["gate"]["outlier_columns"][2].tolist() == [7]
    layers = quantised["blocks"]
    assert layers["layer_1"]["attention"]["query"]["outlier_columns"].tolist() == [5, 40]
    assert layers["layer_2"]["mlp"]["gate"]["outlier_columns"].tolist() == [7]
    np.testing.assert_array_equal(
        layers["layer_1"]["attention"]["value"]["outlier_kernel"],
        params["blocks"]["layer_1"]["attention"]["value"]["kernel"][[5, 40]],
    )


def test_all_columns_in_float_is_the_model_itself():
    small, quantised = zoo.quantize(MODEL, PARAMS, calibration=TOKENS, threshold=0)
    assert small.config.int8 == Int8([48] * 3, [48] * 3, [48] * 3, [80] * 3, 48)
    expected = MODEL.apply(PARAMS, TOKENS).logits
    np.testing.assert_allclose(small.apply(quantised, TOKENS).logits, expected, rtol=0, atol=5e-5)


def test_it_generates_as_it_reads():
    small, quantised = zoo.quantize(MODEL, PARAMS)
    prompts = [[1, 5, 9], [3, 4, 5, 6, 7]]
    made = zoo.generate(small, quantised, prompts, max_new_tokens=6)
    for prompt, new in zip(prompts, made.tokens.tolist(), strict=True):
        logits = small.apply(quantised, np.array([prompt + new])).logits[0]
        assert new == np.argmax(logits, axis=-1)[len(prompt) - 1 : -1].tolist()
    vectors = small.apply(quantised, np.array([[1, 5, 9, 0]]), padding_mask=np.array([[1, 1, 1, 0]])).hidden[0, 2]
    np.testing.assert_allclose(vectors, small.apply(quantised, np.array([[1, 5, 9]])).hidden[0, 2], rtol=0, atol=1e-5)


def test_the_command_quantises_on_the_spot(capsys):
    path, prompt = "oneblock/gpt-tiny", "the price of"
    words = ["generate", path, prompt, "--int8", "--max-new-tokens", "4"]
    assert run("zoo", cli.SUBCOMMANDS, words) == 0
    model, params, tokenizer = *zoo.load(path), zoo.load_tokenizer(path)
    small, quantised = zoo.quantize(model, params, calibration=sample_rows(tokenizer))
    expected = zoo.generate(small, quantised, [prompt], max_new_tokens=4, tokenizer=tokenizer).texts[0]
    assert capsys.readouterr().out.startswith(prompt + expected)
    bytes_of = [sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (quantised, params)]
    assert bytes_of[0] < 0.45 * bytes_of[1]  # learned positions stay float


def test_a_table_that_stays_float():
    small, quantised = zoo.quantize(MODEL, PARAMS, table=False)
    assert small.config.int8.table is None
    assert quantised["embed"]["token"]["embedding"] is PARAMS["embed"]["token"]["embedding"]


def test_the_summary_tells_the_memory():
    big = zoo.summarise(zoo.create("smollm2-135m"))
    small = zoo.summarise(zoo.create("smollm2-135m", int8=Int8(table=0)))
    assert big.weight_bytes == 4 * 134_515_008 and small.total_parameters == 134_515_008
    assert 0.25 < small.weight_bytes / big.weight_bytes < 0.26
    assert "weights in int8" in str(small) and "training state" not in str(small)


def test_ids_outside_the_table_give_nan():
    small, quantised = zoo.quantize(MODEL, PARAMS)
    table = int8.token_table(quantised["embed"]["token"])
    found = np.asarray(table.look_up(jnp.array([3, -1, 97])))
    assert np.isfinite(found[0]).all() and np.isnan(found[1:]).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threshold": -1}, "threshold is -1; it must be 0 or more"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"calibration": [[97]]}, "calibration holds id 97, outside the vocabulary: 0 to 96"),
        ({"calibration": []}, "calibration has no tokens"),
        ({"calibration": [[1], []]}, "or a row without any"),
        ({"calibration": "text"}, "calibration is a str; give lists of ids"),
        ({"calibration": np.zeros(3, np.int32)}, "calibration has shape (3,)"),
    ],
)
def test_refusals(options, said):
    with pytest.raises(InputError) as error:
        zoo.quantize(MODEL, PARAMS, **options)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_int8_is_not_there_for(tmp_path):
    small, quantised = zoo.quantize(MODEL, PARAMS)
    with pytest.raises(InputError, match="quantize needs float weights, and these are int8"):
        zoo.quantize(small, quantised)
    with pytest.raises(InputError, match="int8=.*keep the run folder|int8"):
        zoo.export(small, quantised, tmp_path / "out")
    for save in (plain_folder.save, run_folder.save):
        with pytest.raises(InputError, match="a folder needs float weights, and these are int8"):
            save(small, quantised, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    images = zoo.create("vit-tiny")
    with pytest.raises(InputError, match="int8 is for models of texts"):
        zoo.quantize(images, {})
    with pytest.raises(InputError, match='site "attention.heads" needs float weights'):
        small.apply(quantised, TOKENS, want="blocks.*.attention.heads")
    broken = jax.tree.map(lambda leaf: leaf * np.nan, PARAMS)
    with pytest.raises(InputError, match="not finite"):
        zoo.quantize(MODEL, broken)
    with pytest.raises(InputError, match="int8.out is 49; it must be a whole number from 0 to 48"):
        zoo.create("llama-tiny", **SIZES, int8=Int8(out=49))
    with pytest.raises(InputError, match="int8.out has 2 numbers; it must have 1 or 3"):
        zoo.create("llama-tiny", **SIZES, int8=Int8(out=(0, 1)))
    with pytest.raises(InputError, match="int8.out has 3 numbers; it must have 1, as one program runs all layers"):
        zoo.create("llama-tiny", **SIZES, scan=True, int8=Int8(out=(0, 1, 2)))
    with pytest.raises(InputError, match="int8.table is set"):
        zoo.create("bert-tiny", head="masked_lm", int8=Int8(table=0))
    with pytest.raises(InputError, match="int8 is True; it is what zoo.quantize made"):
        zoo.create("llama-tiny", int8=True)
