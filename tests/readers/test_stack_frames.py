"""Whether a call ran in the optimizer, by the functions around it."""

from __future__ import annotations

import pytest

from dumpdiff.readers.stack_frames import build_site


@pytest.mark.parametrize(
    ("file", "function", "in_optimizer"),
    [
        ("/torch/nn/utils/clip_grad.py", "clip_grad_norm_", True),
        ("/megatron/core/optimizer/clip_grads.py", "get_grad_norm_fp32", True),
        ("/work/train.py", "print_local_norms", True),
        ("/torch/optim/adamw.py", "step", True),
        ("/work/train.py", "train_step", False),
        ("/work/model.py", "layer_norm", False),
    ],
)
def test_gradient_norms_and_clipping_are_no_forward_pass(
    file: str, function: str, in_optimizer: bool
) -> None:
    """The recorder names such calls '.forward', and a dump may have no gradient records."""
    frames = [(file, 12, function, "x = y"), ("/work/train.py", 3, "main", "main()")]
    assert build_site(frames).in_optimizer == in_optimizer


@pytest.mark.parametrize(("functions", "expected"), [
    (["sum", "backward", "main"], True),
    (["forward", "backward", "main"], False),  # a reentrant checkpoint runs the layer again
    (["forward", "main"], False),
    (["main"], False),
])  # fmt: skip
def test_a_users_own_backward_function_computes_gradients(functions, expected):
    frames = [("/home/user/model.py", line, name, "x = y") for line, name in enumerate(functions)]
    assert build_site(frames).computes_gradient == expected
