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
    "convolution": "Conv2D Conv3D Conv2DExt Conv2DTranspose Conv2DPadding ConvTranspose2D "
    "Conv1dTranspose Functional.conv1d Functional.conv_transpose2d Aten._convolution "
    "DepthwiseConv2dNative Module.Conv2d Cell.Conv2dTranspose",
    "grad:convolution": "ConvolutionBackward0 ConvolutionGrad Conv2DBackpropInput "
    "Conv2DBackpropFilter",
    "avg_pool": "AvgPool AvgPool2D AvgPool3DExt Functional.avg_pool2d AdaptiveAvgPool2DExt "
    "AdaptiveAvgPool3D Torch.adaptive_avg_pool1d Module.AvgPool2d Aten._adaptive_avg_pool2d",
    "grad:avg_pool": "AvgPoolGrad AvgPool2DGrad AdaptiveAvgPool2DGradExt AvgPool2DBackward0",
    "max_pool": "MaxPool MaxPoolWithMask MaxPoolWithIndices MaxPoolWithArgmaxV2 FuncMaxPool2D "
    "MaxPool3DWithArgmax AdaptiveMaxPool3D Functional.max_pool2d "
    "Functional.max_pool1d_with_indices",
    "grad:max_pool": "MaxPoolGrad MaxPool3DGrad MaxPoolGradWithMask MaxPoolGradWithIndices "
    "MaxPoolGradWithArgmaxV2 MaxPool2DWithIndicesBackward0",
    "max_unpool": "MaxUnpool2D MaxUnpool2DExt Functional.max_unpool2d",
    "upsample": "ResizeNearestNeighbor ResizeNearestNeighborV2 ResizeBilinearV2 ResizeBicubic "
    "ResizeLinear1D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleLinear1D "
    "UpsampleBilinear2D UpsampleTrilinear3D UpsampleBicubic2D Functional.interpolate "
    "Functional.upsample Module.Upsample Aten._upsample_nearest_exact2d",
    "grad:upsample": "ResizeNearestNeighborGrad ResizeNearestNeighborV2Grad ResizeBilinearGrad "
    "ResizeBicubicGrad ResizeLinear1DGrad UpsampleNearest2DGrad UpsampleBilinear2DGrad "
    "UpsampleTrilinear3DGrad UpsampleNearest2DBackward0",
    "grid_sample": "GridSampler2D GridSampler3D Functional.grid_sample Torch.grid_sampler",
    "batch_norm": "BatchNorm BatchNormExt Functional.batch_norm Torch.native_batch_norm "
    "Module.BatchNorm3d Cell.BatchNorm2d",
    "group_norm": "GroupNorm Functional.group_norm Torch.native_group_norm Cell.GroupNorm",
    "instance_norm": "InstanceNorm Functional.instance_norm Module.InstanceNorm2d",
    "local_response_norm": "LRN Functional.local_response_norm Module.LocalResponseNorm",
    "lstm": "LSTM Torch.lstm Module.LSTM Cell.LSTMCell DynamicRNN",
    "grad:lstm": "LSTMGrad LSTMGradData LSTMGradWeight",
    "gru": "GRU Torch.gru DynamicGRUV2 Cell.GRUCell",
    "rnn": "Torch.rnn_tanh Module.RNN Cell.RNNCell",
    "cumsum": "CumSum CumsumExt Torch.cumsum",
    "cummax": "Cummax Torch.cummax",
    "logcumsumexp": "CumulativeLogsumexp Torch.logcumsumexp",
    "scatter": "ScatterNdUpdate ScatterValue Tensor.scatter_ TensorScatterUpdate "
    "InplaceScatterValue",
    "scatter_reduce": "TensorScatterMax ScatterNdMin InplaceScatterSrcReduce "
    "Tensor.scatter_reduce Tensor.index_reduce_",
    "pad": "Pad PadV3 MirrorPad ConstantPadND ReflectionPad2D ReplicationPad1D Functional.pad "
    "Module.ZeroPad2d Cell.ReflectionPad2d",
    "grad:pad": "PadV3Grad MirrorPadGrad ReflectionPad2DGrad",
    "roll": "Roll Torch.roll Mint.roll",
    "flip": "ReverseV2 Torch.flip Tensor.flipud",
    "fft": "Torch.fft.fft FFTWithSize FFT FFT2 Torch.fft.fftn",
    "rfft": "RFFT Torch.fft.rfft Aten._fft_r2c",
    "irfft": "IRFFT IRFFT2 Torch.fft.irfft",
    "fftshift": "FFTShift Torch.fft.fftshift",
    "einsum": "Einsum EinsumExt Torch.einsum Torch.tensordot",
    "fold": "Col2Im Col2ImExt Functional.fold",
    "unfold": "Im2Col Im2ColExt Functional.unfold",
    "pixel_shuffle": "PixelShuffle Functional.pixel_shuffle",
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
    kinds = [kind for kind in rules._operators.kinds if not kind.startswith("grad:")]
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
