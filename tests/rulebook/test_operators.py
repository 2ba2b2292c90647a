"""Every framework's spelling of an operator onto one kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.rulebook import Rules, load_rules

KINDS = {
    "matmul": "MatMul MatMulExt BatchMatMul BatchMatMulExt Mm Dense Functional.linear "
    "Torch.matmul Torch.bmm "
    "Tensor.matmul "
    "Tensor.__matmul__ Mint.matmul MintFunctional.linear Primitive.MatMul "
    "Primitive.matmul.MatMul Module.Linear "
    "Cell.Dense NPU.npu_linear NPU.npu_bmmV2 Aten.mm Functional.dense",
    "add": "Add AddExt AddScalar AddN Tensor.__add__ Tensor.__iadd__ Tensor.__radd__ Tensor.add_ "
    "Torch.add Mint.add "
    "BiasAdd InplaceAddExt Aten.add.Tensor",
    "mul": "Mul Muls Tensor.__mul__ Tensor.__imul__ Torch.mul Tensor.mul_",
    "div": "Div RealDiv Divs Tensor.__truediv__ Torch.div",
    "sub": "Sub SubExt SubScalar Tensor.__sub__ Tensor.__rsub__",
    "pow": "Pow PowTensorScalar Tensor.pow Tensor.__pow__",
    "mean": "ReduceMean MeanExt Tensor.mean Mint.mean",
    "sum": "ReduceSum SumExt Tensor.sum BiasAddGrad",
    "max": "ReduceMax MaxDim Tensor.max Torch.amax",
    "rsqrt": "Rsqrt Torch.rsqrt",
    "rms_norm": "RmsNorm Functional.rms_norm NPU.npu_rms_norm Module.RMSNorm Cell.LlamaRMSNorm",
    "layer_norm": "LayerNorm LayerNormExt Functional.layer_norm Primitive.layer_norm.LayerNorm "
    "Module.LayerNorm",
    "attention": "FlashAttentionScore Functional.scaled_dot_product_attention "
    "NPU.npu_fusion_attention "
    "NPU.npu_fusion_attention_v2",
    "silu": "SiLU Functional.silu NPU.npu_silu Module.SiLU",
    "swiglu": "Swiglu NPU.npu_swiglu FusedSwiGlu",
    "gelu": "GeLU GeluExt Functional.gelu NPU.npu_gelu",
    "rope": "RotaryPositionEmbedding ApplyRotaryPosEmb NPU.npu_rotary_mul",
    "gather_rows": "Embedding Gather Primitive.gather.Gather Functional.embedding IndexSelect "
    "Torch.index_select",
    "gather_elements": "GatherD Torch.gather Mint.gather Tensor.gather Functional.gather_elements",
    "softmax": "Softmax Functional.softmax Tensor.softmax",
    "cross_entropy": "Functional.cross_entropy SparseSoftmaxCrossEntropyWithLogits",
    "log_softmax": "LogSoftmaxExt Functional.log_softmax",
    "nll_loss": "NLLLoss Functional.nll_loss",
    "cast": "Cast Tensor.to Tensor.type_as NPU.npu_dtype_cast Tensor.float",
    "reshape": "Reshape Tensor.view Tensor.reshape View Primitive.reshape.Reshape",
    "transpose": "Transpose TransposeView TransposeExtView Tensor.permute Functional.swapaxes "
    "Tensor.t "
    "NPU.npu_confusion_transpose",
    "expand_dims": "ExpandDims ExpandDimsView Tensor.unsqueeze",
    "concat": "Concat StackExt Torch.cat Torch.stack",
    "split": "Split SplitTensorView SplitWithSizeView SplitWithSize ChunkView Torch.chunk "
    "Torch.split",
    "slice": "StridedSlice Slice Tensor.__getitem__ NPU.npu_slice Tensor.select Torch.select",
    "where": "Select Torch.where",
    "expand": "Tile BroadcastToView RepeatInterleaveInt Tensor.expand Tensor.repeat",
    "masked_fill": "MaskedFill MaskedFillScalar Tensor.masked_fill",
    "topk": "TopK TopkExt Torch.topk",
    "sort": "SortExt Tensor.sort",
    "dropout": "DropoutExt Functional.dropout NPU._npu_dropout",
    "grouped_matmul": "GroupedMatmul GroupedMatmulV2 GroupedMatmulV4 NPU.npu_grouped_matmul "
    "NPU.npu_gmm",
    "moe_permute": "MoeTokenPermute NPU.npu_moe_token_permute",
    "moe_unpermute": "InnerMoeTokenUnpermute MoeTokenUnpermute NPU.npu_moe_token_unpermute",
    "one_hot": "OneHot OneHotExt Functional.one_hot",
    "scatter_add": "ScatterAddExt InplaceIndexAddExt Tensor.scatter_add",
    "all_reduce": "AllReduce Distributed.all_reduce MintDistributed.all_reduce _MirrorOperator",
    "all_gather": "AllGather Distributed.all_gather Distributed.all_gather_into_tensor "
    "Distributed._all_gather_base",
    "adamw": "AdamWeightDecay AdamW NPU.npu_apply_adam_w",
    "identity": "Depend Load Tensor.detach",
    "grad:softmax": "SoftmaxBackward",
    "grad:gelu": "GeluGradExt GeLUGrad",
    "grad:layer_norm": "LayerNormGrad LayerNormGradExt",
    "grad:gather_elements": "GatherDGradV2",
    "grad:gather_rows": "EmbeddingDenseBackward",
    "grad:slice": "StridedSliceGrad",
    "grad:silu": "SiLUGrad",
    "grad:attention": "FlashAttentionScoreGrad",
    "grad:moe_permute": "MoeTokenPermuteGrad",
    "grad:rope": "RotaryPositionEmbeddingGrad",
    "grad:matmul": "MmBackward0",
    "linalg.inv": "Torch.linalg.inv",
    "norm": "Torch.linalg.norm Torch.norm LinalgVectorNorm",
    "mycustomop": "Functional.my_custom_op MyCustomOp",
    "fast_gelu": "FastGeLU NPU.npu_fast_gelu",
}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for kind, names in KINDS.items() for name in names.split()]
)
def test_kind(rules: Rules, name: str, kind: str) -> None:
    assert rules.resolve_kind(name) == kind


@pytest.mark.parametrize(
    ("kind", "kind_class", "layout"),
    [
        ("matmul", "linear", ""),
        ("grad:matmul", "linear", ""),
        ("reshape", "layout", "identity"),
        ("transpose", "layout", "identity"),
        ("contiguous", "layout", "identity"),
        ("slice", "layout", "selecting"),
        ("grad:slice", "layout", ""),
        ("concat", "layout", "selecting"),
        ("expand", "layout", "selecting"),
        ("gather_rows", "index", "selecting"),
        ("identity", "identity", "identity"),
        ("argmax", "discrete", ""),
        ("eq", "discrete", ""),
        ("dropout", "random", ""),
        ("all_reduce", "communication", ""),
        ("adamw", "optimizer", ""),
        ("cross_entropy", "loss", ""),
        ("nobody_knows", "other", ""),
    ],
)
def test_class_and_layout(rules: Rules, kind: str, kind_class: str, layout: str) -> None:
    assert (rules.get_kind_class(kind), rules.get_layout(kind)) == (kind_class, layout)


def test_every_kind_is_its_own_kind(rules: Rules) -> None:
    kinds = rules._operators.kinds
    assert {kind: rules.resolve_kind(kind) for kind in kinds} == {kind: kind for kind in kinds}


@pytest.mark.parametrize(
    "names", ["Erf Erfc", "Exp Exp2 Expm1", "Log Log2 Log1p", "Elu Selu Celu", "Maximum ReduceMax",
    "Var Std",
              "GeLU FastGeLU"]
)  # fmt: skip
def test_functions_with_similar_names_have_different_kinds(rules: Rules, names: str) -> None:
    assert len({rules.resolve_kind(name) for name in names.split()}) == len(names.split())


def test_decompositions_of_common_kinds(rules: Rules) -> None:
    assert ("square", "mean", "add", "rsqrt", "mul", "mul") in rules.decompositions["rms_norm"]
    assert ("sigmoid", "mul") in rules.decompositions["silu"]
    assert all(sequence for sequences in rules.decompositions.values() for sequence in sequences)


RULES = load_rules()


@given(st.text(max_size=30))
def test_any_name_has_a_kind_and_the_kind_a_class(name: str) -> None:
    assert RULES.resolve_kind(name)
    assert RULES.get_kind_class(RULES.resolve_kind(name)) in RULES._tolerances.classes
