"""Where in the model an op belongs, whatever its printed scope says."""

import numpy as np
import pytest
from traces import find_op, load_shipped_rules

from dumpdiff.graph.module_paths import locate_ops


@pytest.fixture(scope="module")
def locate(flow):
    """``located("ms_graph")``: op name -> canonical module path."""

    def map_paths(name):
        return dict(
            zip(
                flow(name).trace.ops["name"],
                locate_ops(flow(name), load_shipped_rules()),
                strict=True,
            )
        )

    return map_paths


class TestGraphMode:
    """MindSpore's graph mode: the scope of many ops is that of another layer."""

    def test_an_op_that_reads_a_parameter_is_in_its_module(self, flow):
        flow = flow("ms_graph")
        paths = locate_ops(flow, load_shipped_rules())
        names = flow.classes["parameter"].to_numpy()
        named_reads = []
        for op, reads in enumerate(flow.reads):
            named_reads += [(op, names[value]) for value in reads if names[value]]
        assert len(named_reads) > 60
        for consumer, name in named_reads:
            assert load_shipped_rules().resolve_parameter(name).startswith(f"{paths[consumer]}.")

    def test_the_parameters_around_an_op_decide_and_not_its_scope(self, flow):
        """A third of the scopes that name a layer name another one than the parameters do."""
        flow = flow("ms_graph")
        paths = locate_ops(flow, load_shipped_rules())
        n_wrong = n_right = 0
        for scope, path, phase in zip(flow.trace.ops["scope"], paths, flow.phases, strict=True):
            if phase == "forward" and "layers-CellList" in scope and path.startswith("layers."):
                layer = scope.partition("layers-CellList/")[2].partition("-")[0]
                n_right += path.startswith(f"layers.{layer}.")
                n_wrong += not path.startswith(f"layers.{layer}.")
        assert n_right > 100
        assert n_wrong > 30

    def test_the_ops_of_a_norm_are_in_it(self, locate):
        paths = locate("ms_graph")
        norm = "Default/n-WithLoss/n-TinyLlama/layers-CellList/0-Block/input_norm-RMSNorm"
        for name in ("Pow-op0", "Add-op0", "Rsqrt-op0", "Mul-op0", "Mul-op1"):
            assert paths[f"{norm}/{name}"] == "layers.0.input_norm"
        assert paths["Default/ReduceMean-op0"] == "layers.0.input_norm", (
            "though its scope says nothing"
        )

    def test_an_op_between_modules_of_one_part_is_in_that_part(self, locate):
        attention = "Default/n-WithLoss/n-TinyLlama/layers-CellList/0-Block/attention-Attention"
        assert locate("ms_graph")[f"{attention}/Neg-op0"] == "layers.0.attention"

    def test_layers_follow_each_other(self, flow):
        """In the order of execution the layer of the ops that read parameters never goes back."""
        flow = flow("ms_graph")
        paths = locate_ops(flow, load_shipped_rules())
        named = (flow.classes["parameter"] != "").to_numpy()
        reading = [
            int(path.split(".")[1])
            for path, reads, phase in zip(paths, flow.reads, flow.phases, strict=True)
            if phase == "forward" and path.startswith("layers.") and any(named[v] for v in reads)
        ]
        assert set(reading) == {0, 1, 2, 3}
        assert (np.diff(reading) >= 0).all()

    def test_a_gradient_op_that_reads_a_weight_is_in_its_module(self, locate):
        block = "Gradients/Default/n-WithLoss/n-TinyLlama/layers-CellList/0-Block"
        gradient = f"{block}/mlp-MLP/w3-Dense/Grad_MatMul/MatMul-op1"
        assert locate("ms_graph")[gradient] == "layers.3.mlp.down_proj", (
            "its scope says layer 0, w3"
        )


class TestApiDumps:
    def test_module_trees_of_the_recorder_are_used(self, locate):
        paths = locate("pt_none")
        assert paths["Tensor.__add__.4.forward"] == "layers.1"
        assert paths["Functional.silu.1.forward"] == "layers.1.mlp.activation"
        assert paths["Torch.matmul.2.forward"] == "layers.1.attention"

    def test_both_frameworks_come_to_the_same_paths(self, locate):
        assert locate("pt_none")["Functional.linear.10.forward"] == "layers.1.attention.out"
        paths = {
            path for path in locate("ms_mf_none").values() if path.startswith("layers.1.attention")
        }
        assert "layers.1.attention.out" in paths

    def test_a_gradient_is_where_its_forward_call_is(self, flow):
        flow = flow("pt_none")
        paths = locate_ops(flow, load_shipped_rules())
        for backward, forward in enumerate(flow.trace.ops["forward"].tolist()):
            if forward >= 0:
                assert paths[backward] == paths[forward]

    def test_nothing_is_guessed_where_nothing_has_a_name(self, flow):
        flow = flow("v6.0_api_stack")
        assert set(locate_ops(flow, load_shipped_rules())) == {""}
        assert find_op(flow.trace, "Functional.linear.18.forward") > 0
