"""Collectives read from HLO text: notations of groups, loops, asynchronous forms, hidden scatters, bytes by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.plan.collectives import by_kind_and_axes, collectives, make, wire_bytes
from train.plan.groups import axes_of, replica_groups, source_target_pairs
from train.plan.hlo import array_bytes, array_shapes, execution_counts, parse_hlo
from zoo.errors import InputError

MESH = {"data": 2, "fsdp": 2, "tensor": 2}


def program(*lines, before=""):
    """A module whose entry has a parameter %x f32[4,8] and these lines."""
    body = "\n".join(f"  {line}" for line in lines)
    return f"""HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

{before}
ENTRY %main (x: f32[4,8]) -> f32[4,8] {{
  %x = f32[4,8]{{1,0}} parameter(0)
{body}
}}
"""


@pytest.mark.parametrize(
    "text,groups",
    [
        ("replica_groups={{0,1},{2,3}}, to_apply=%add", [[0, 1], [2, 3]]),
        ("replica_groups={}, to_apply=%add", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("replica_groups=[2,4]<=[8], use_global_device_ids=true", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("replica_groups=[4,2]<=[2,2,2]T(2,0,1)", [[0, 2], [4, 6], [1, 3], [5, 7]]),
        ("replica_groups=mesh['data'=2,'tensor'=4] {'tensor'}, dimensions={0}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("replica_groups=mesh['data'=2,'tensor'=4] {'data'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("replica_groups=mesh['a'=2,'b'=2,'c'=2] {'a','c'}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("replica_groups=mesh['a'=8] {'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=(3,2,1,0) {'b'}", [[3, 2], [1, 0]]),
    ],
)
def test_groups_by_hand(text, groups):
    assert replica_groups(f", channel_id=1, {text}", 8) == groups


@given(st.permutations([0, 1, 2]), st.lists(st.sampled_from([1, 2, 3]), min_size=3, max_size=3), st.integers(0, 2))
def test_iota_explicit_and_mesh_notations_agree(order, sizes, axis):
    """Groups along one axis of a mesh, said in three ways."""
    import numpy as np

    names = "abc"
    mesh = ",".join(f"'{name}'={size}" for name, size in zip(names, sizes, strict=True))
    ids = np.arange(np.prod(sizes)).reshape(sizes)
    rest = [other for other in range(3) if other != axis]
    expected = ids.transpose([*rest, axis]).reshape(-1, sizes[axis])
    explicit = "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in expected.tolist()) + "}"
    iota = f"[{expected.shape[0]},{expected.shape[1]}]<=[{','.join(map(str, sizes))}]T({rest[0]},{rest[1]},{axis})"
    for text in (explicit, iota, f"mesh[{mesh}] {{'{names[axis]}'}}"):
        assert replica_groups(f"replica_groups={text}, to_apply=%add", ids.size) == expected.tolist()
    # A permuted list of devices moves the members, not the structure.
    permuted = ids.transpose(order).reshape(-1)
    text = f"mesh[{mesh}], device_ids=([{','.join(map(str, sizes))}]T({','.join(map(str, order))})) {{'{names[axis]}'}}"
    assert replica_groups(f"replica_groups={text}", ids.size) == permuted[expected].tolist()
    shape = dict(zip(names, sizes, strict=True))
    assert axes_of(expected.tolist(), shape) == ((names[axis],) if sizes[axis] > 1 else ())


def test_axes_of_groups():
    assert axes_of([[0, 1], [2, 3], [4, 5], [6, 7]], MESH) == ("tensor",)
    assert axes_of([[0, 2], [1, 3], [4, 6], [5, 7]], MESH) == ("fsdp",)
    assert axes_of([[0, 2, 4, 6], [1, 3, 5, 7]], MESH) == ("data", "fsdp")
    assert axes_of([[0], [1]], MESH) == ()
    assert axes_of([[0, 2], [1, 3]], {"fsdp": 4}) == ("fsdp",)  # a part of an axis
    assert source_target_pairs(", source_target_pairs={{0,1},{1,0}}") == [(0, 1), (1, 0)]


@pytest.mark.parametrize("text", ["replica_groups=<new>", "to_apply=%add"])
def test_unknown_notations_are_refused(text):
    with pytest.raises(InputError, match="replica_groups"):
        replica_groups(text, 8)


def test_devices_beyond_the_mesh_are_refused():
    text = program("ROOT %r = f32[4,8] all-reduce(%x), replica_groups={{0,1},{2,9}}, to_apply=%add")
    with pytest.raises(InputError, match="beyond the 8"):
        collectives(text, MESH)


def test_bytes_on_a_ring():
    # 4 x 8 float32 are 128 bytes a chip; gathered over 2 chips 256, of which half comes from outside.
    text = program(
        "%g = f32[8,8]{1,0} all-gather(%x), channel_id=1, replica_groups=[4,2]<=[8], dimensions={0}",
        "%r = f32[4,8]{1,0} all-reduce(%x), channel_id=2, replica_groups={{0,2,4,6},{1,3,5,7}}, to_apply=%add",
        "%s = f32[2,8]{1,0} reduce-scatter(%x), channel_id=3, replica_groups=[4,2]<=[4,2]T(1,0), dimensions={0}",
        "%a = f32[4,8]{1,0} all-to-all(%x), channel_id=4, replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}",
        "ROOT %p = f32[4,8]{1,0} collective-permute(%x), channel_id=5, source_target_pairs={{0,1},{1,0},{2,2}}",
    )
    found = [(c.kind, c.axes, c.group, c.count, c.payload, c.wire) for c in collectives(text, MESH)]
    assert found == [
        ("all-gather", ("tensor",), 2, 1, 256, 128),
        ("all-reduce", ("data", "fsdp"), 4, 1, 128, 192),
        ("reduce-scatter", ("fsdp",), 2, 1, 128, 64),
        ("all-to-all", ("data",), 2, 1, 128, 64),
        ("collective-permute", ("tensor",), 2, 1, 128, 32),  # two of eight chips send
    ]


def test_asynchronous_pairs_count_once_and_tuples_by_part():
    text = program(
        "%s = (f32[4,8], f32[8,8]) all-gather-start(%x), channel_id=1, replica_groups=[4,2]<=[8], dimensions={0}",
        "%d = f32[8,8] all-gather-done(%s)",
        "%y = bf16[16]{0:T(256)} convert(%x)",
        "%t = (f32[4,8], /*index=1*/bf16[16]) all-reduce-start(%x, /*index=1*/%y), replica_groups={}, to_apply=%add",
        "%e = (f32[4,8], bf16[16]) all-reduce-done(%t)",
        "%w = ((f32[4,8]), f32[2,8]) async-start(%x), calls=%wrapped",
        "ROOT %z = f32[2,8] async-done(%w), calls=%wrapped",
        before="%wrapped (p: f32[4,8]) -> f32[2,8] {\n  %p = f32[4,8] parameter(0)\n"
        "  ROOT %rs = f32[2,8] reduce-scatter(%p), replica_groups=[4,2]<=[8], dimensions={0}\n}\n",
    )
    rows = by_kind_and_axes(collectives(text, MESH))
    assert rows["all-gather", ("tensor",)] == {"count": 1, "payload": 256, "wire": 128, "least": 128}
    assert rows["all-reduce", ("data", "fsdp", "tensor")]["payload"] == 128 + 32
    assert rows["reduce-scatter", ("tensor",)]["wire"] == 64
    assert len(rows) == 3 and list(rows)[0][0] == "all-reduce"  # the most bytes first


WHILE = """%body (state: (s32[], f32[4,8], s32[])) -> (s32[], f32[4,8], s32[]) {
  %state = (s32[], f32[4,8], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %c = s32[] copy(%i)
  %one = s32[] constant(STEP)
  %next = s32[] add(%c, %one)
  %v = f32[4,8] get-tuple-element(%state), index=1
  %n = s32[] get-tuple-element(%state), index=2
  %r = f32[4,8] all-reduce(%v), replica_groups={}, to_apply=%add
  ROOT %out = (s32[], f32[4,8], s32[]) tuple(%next, %r, %n)
}

%cond (state: (s32[], f32[4,8], s32[])) -> pred[] {
  %state = (s32[], f32[4,8], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %n = s32[] BOUND
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}
"""
LOOP = "ROOT %loop = (s32[], f32[4,8], s32[]) while(%init), condition=%cond, body=%body"
INIT = ("%zero = s32[] constant(START)", "%end = s32[] constant(12)", "%init = (s32[]) tuple(%zero, %x, %end)")


@pytest.mark.parametrize(
    "start,step,bound,config,count",
    [
        (0, 1, "constant(7)", "", 7),
        (2, 3, "constant(12)", "", 4),
        (0, 1, "get-tuple-element(%state), index=2", "", 12),
        (0, 1, "constant(7)", ', backend_config={"known_trip_count":{"n":"5"},"x":1}', 5),
        (5, 1, "constant(5)", "", 0),
    ],
)
def test_loops_count_their_trips(start, step, bound, config, count):
    before = WHILE.replace("STEP", str(step)).replace("BOUND", bound)
    text = program(*(line.replace("START", str(start)) for line in INIT), LOOP + config, before=before)
    found = collectives(text, MESH)
    assert sum(c.count for c in found) == count and all(c.exact for c in found)


def test_nested_loops_multiply_and_unknown_ones_are_marked():
    outer = """%outer_body (s: (s32[], f32[4,8], s32[])) -> (s32[], f32[4,8], s32[]) {
  %s = (s32[], f32[4,8], s32[]) parameter(0)
  %zero.1 = s32[] constant(0)
  %x.1 = f32[4,8] get-tuple-element(%s), index=1
  %end.1 = s32[] constant(3)
  %init.1 = (s32[], f32[4,8], s32[]) tuple(%zero.1, %x.1, %end.1)
  ROOT %inner = (s32[], f32[4,8], s32[]) while(%init.1), condition=%cond, body=%body
}
"""
    before = WHILE.replace("STEP", "1").replace("BOUND", "constant(7)") + outer
    call = "ROOT %w = (s32[], f32[4,8], s32[]) while(%init), condition=%cond, body=%outer_body"
    lines = [line.replace("START", "0") for line in INIT]
    known = program(*lines, call + ', backend_config={"known_trip_count":{"n":"5"}}', before=before)
    assert [(c.count, c.exact) for c in collectives(known, MESH)] == [(35, True)]
    unknown = program(*lines, call, before=before)  # its body's root is no tuple: the step cannot be read
    assert [(c.count, c.exact) for c in collectives(unknown, MESH)] == [(7, False)]


SCATTER = """%all-reduce-scatter.3 (input: f32[4,8]) -> f32[1,8] {
  %input = f32[4,8] parameter(0)
  %sum = f32[4,8]{1,0:T(8,128)} all-reduce(%input), replica_groups=[2,4]<=[8], to_apply=%add
  %id = u32[] partition-id()
  %zero = u32[] constant(0)
  ROOT %part = f32[1,8] dynamic-slice(%sum, %id, %zero), dynamic_slice_sizes={1,8}
}
"""
CUT = """%cut (p0: f32[4,8], p1: u32[]) -> bf16[1,8] {
  %p0 = f32[4,8] parameter(0)
  %p1 = u32[] parameter(1)
  %narrow = bf16[4,8] convert(%p0)
  ROOT %part.1 = bf16[1,8] dynamic-slice(%narrow, %p1, %p1), dynamic_slice_sizes={1,8}
}

%narrowed (p2: f32[4,8]) -> bf16[4,8] {
  %p2 = f32[4,8] parameter(0)
  ROOT %narrow.2 = bf16[4,8] convert(%p2)
}
"""
SUM = "%sum = f32[4,8] all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add"


def test_a_scatter_fused_by_the_tpu_compiler():
    text = program("ROOT %f = f32[1,8] fusion(%x), kind=kCustom, calls=%all-reduce-scatter.3", before=SCATTER)
    (one,) = collectives(text, MESH)
    assert (one.kind, one.payload, one.wire, one.sliced) == ("reduce-scatter", 128, 96, False)


@pytest.mark.parametrize(
    "readers,kind",
    [
        (["ROOT %p = f32[1,8] dynamic-slice(%sum, %i, %i), dynamic_slice_sizes={1,8}"], "reduce-scatter"),
        (["ROOT %f = bf16[1,8] fusion(%sum, %i), kind=kLoop, calls=%cut"], "reduce-scatter"),
        (
            ["%n = bf16[4,8] fusion(%sum), kind=kLoop, calls=%narrowed",
             "ROOT %p = bf16[1,8] dynamic-slice(%n, %i, %i), dynamic_slice_sizes={1,8}"],
            "reduce-scatter",
        ),
        (
            ["%p = f32[1,8] dynamic-slice(%sum, %i, %i), dynamic_slice_sizes={1,8}",
             "ROOT %n = f32[4,8] negate(%sum)"],  # somebody reads the whole
            "all-reduce",
        ),
        (["ROOT %p = f32[2,8] dynamic-slice(%sum, %i, %i), dynamic_slice_sizes={2,8}"], "all-reduce"),  # half, of 4
        (["ROOT %n = f32[4,8] negate(%sum)"], "all-reduce"),
    ],
)  # fmt: skip
def test_a_sum_whose_readers_slice_is_a_scatter(readers, kind):
    text = program("%i = u32[] partition-id()", SUM, *readers, before=CUT)
    (tpu,), (cpu,) = collectives(text, MESH, "tpu"), collectives(text, MESH, "cpu")
    assert tpu.kind == cpu.kind == kind and tpu.payload == 128
    assert tpu.wire == 192  # it runs as it is printed
    assert cpu.wire == (96 if kind == "reduce-scatter" else 192)
    assert tpu.least == cpu.least == cpu.wire


FILLED = """%filled (p0: f32[1,8], p1: u32[], p2: f32[4,8]) -> f32[4,8] {
  %p0 = f32[1,8] parameter(0)
  %p1 = u32[] parameter(1)
  %p2 = f32[4,8] parameter(2)
  ROOT %whole = f32[4,8] dynamic-update-slice(%p2, %p0, %p1, %p1)
}
"""


@pytest.mark.parametrize(
    "zeros,part,kind",
    [
        ("constant(0)", "f32[1,8]", "all-gather"),
        ("constant(1)", "f32[1,8]", "all-reduce"),  # what was there counts
        ("constant(0)", "f32[2,8]", "all-reduce"),  # half, of 4
    ],
)
@pytest.mark.parametrize("fused", [False, True])
def test_a_sum_of_filled_in_parts_is_a_gather(zeros, part, kind, fused):
    fill = "fusion(%piece, %i, %empty), kind=kLoop, calls=%filled" if fused else (
        "dynamic-update-slice(%empty, %piece, %i, %i)"
    )  # fmt: skip
    text = program(
        "%i = u32[] partition-id()",
        f"%piece = {part} slice(%x), slice={{[0:1], [0:8]}}",
        f"%nothing = f32[] {zeros}",
        "%empty = f32[4,8] broadcast(%nothing), dimensions={}",
        f"%w = f32[4,8] {fill}",
        "%c = bf16[4,8] convert(%w)" if not fused else "%c = f32[4,8] copy(%w)",
        f"%sum = {'f32' if fused else 'bf16'}[4,8] all-reduce(%c), replica_groups=[2,4]<=[8], to_apply=%add",
        "ROOT %n = f32[4,8] negate(%sum)",
        before=FILLED.replace("f32[1,8]", part),
    )
    (tpu,), (cpu,) = collectives(text, MESH, "tpu"), collectives(text, MESH, "cpu")
    assert tpu.kind == cpu.kind == kind
    if kind == "all-gather":
        assert (tpu.payload, tpu.shapes, tpu.sliced) == (128, ("f32[1,8]",), True)
        assert (tpu.wire, tpu.least, cpu.wire) == (192, 96, 96)


def test_a_tuple_of_sums_is_judged_by_part():
    text = program(
        "%i = u32[] partition-id()",
        "%y = f32[16] copy(%x)",
        "%both = (f32[4,8], f32[16]) all-reduce(%x, %y), replica_groups=[2,4]<=[8], to_apply=%add",
        "%a = f32[4,8] get-tuple-element(%both), index=0",
        "%b = f32[16] get-tuple-element(%both), index=1",
        "%p = f32[1,8] dynamic-slice(%a, %i, %i), dynamic_slice_sizes={1,8}",
        "ROOT %n = f32[16] negate(%b)",
    )
    assert sorted((c.kind, c.payload) for c in collectives(text, MESH)) == [("all-reduce", 64), ("reduce-scatter", 128)]


def test_an_async_collective_fusion_counts_where_it_begins():
    gather = 'all-gather(%{p}), replica_groups=[4,2]<=[8], dimensions={{0}}, frontend_attributes={{chain_id="3"}}'
    before = "".join(
        f"%{name} (p{i}: f32[4,8]) -> f32[8,8] {{\n  %p{i} = f32[4,8] parameter(0)\n"
        f"  %g{i} = f32[8,8] {gather.format(p=f'p{i}')}\n  ROOT %c{i} = (f32[8,8]) custom-call(%g{i}){target}\n}}\n\n"
        for i, (name, target) in enumerate(
            [("start", ', custom_call_target="AsyncCollectiveStart"'), ("async_collective_fusion.1", ""),
             ("done", ', custom_call_target="AsyncCollectiveDone"')]
        )
    )  # fmt: skip
    calls = ["%s = (f32[8,8]) fusion(%x), calls=%start", "%m = (f32[8,8]) fusion(%x), calls=%async_collective_fusion.1"]
    text = program(*calls, "ROOT %d = (f32[8,8]) fusion(%x), calls=%done", before=before)
    assert [(c.name, c.payload) for c in collectives(text, MESH)] == [("g0", 256)]


def test_types_and_branches():
    kinds = "(bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/pred[], u32[4]{0}, f8e4m3fn[<=8], s4[6])"
    shapes = array_shapes(kinds)
    assert shapes == [("bf16", (2, 3)), ("pred", ()), ("u32", (4,)), ("f8e4m3fn", (8,)), ("s4", (6,))]
    assert [array_bytes(*shape) for shape in shapes] == [12, 1, 16, 8, 3]
    text = program("ROOT %b = f32[4,8] conditional(%x, %x), branch_computations={%add, %cut}", before=CUT)
    counts, unknown = execution_counts(parse_hlo(text))
    assert counts["add"] == counts["cut"] == counts["main"] == 1 and "narrowed" not in counts and not unknown


def test_formula_collectives():
    one = make("all-gather", ("fsdp", "tensor"), MESH, 800, 3, "w")
    assert (one.axes, one.group, one.wire, one.count, one.least) == (("fsdp", "tensor"), 4, 600, 3, 600)
    assert wire_bytes("all-reduce", 4, 800) == 1200 and wire_bytes("all-reduce", 1, 800) == 0
