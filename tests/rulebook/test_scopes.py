"""Every naming family onto one canonical path."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.rulebook import Rules, load_rules
from dumpdiff.rulebook.names import split_segments

#: canonical parameter: what the families call it
PARAMETERS = {
    "embedding.weight": [
        "model.embed_tokens.weight", "transformer.wte.weight", "embedding.word_embeddings.weight",
        "language_model.embedding.word_embeddings.weight", "model.tok_embeddings.embedding_weight",
        "model.tok_embeddings.embedding_table", "backbone.embedding.word_embedding.embedding_table",
        "n.n.embedding.embedding_table", "embedding.weight",
        "transformer.embedding.word_embeddings.weight",
    ],
    "position_embedding.weight": [
        "transformer.wpe.weight", "embedding.position_embeddings.weight",
        "language_model.embedding.position_embeddings.weight",
        "backbone.embedding.position_embedding.embedding_table",
    ],
    "layers.3.input_norm.weight": [
        "model.layers.3.input_layernorm.weight", "transformer.h.3.ln_1.weight",
        "decoder.layers.3.input_layernorm.weight",
        "decoder.layers.3.self_attention.linear_qkv.layer_norm_weight",
        "language_model.encoder.layers.3.input_norm.weight",
        "language_model.encoder.layers.3.input_layernorm.weight",
        "model.layers.3.attention_norm.weight",
        "backbone.blocks.3.layernorm1.gamma", "n.n.layers.3.input_norm.weight",
    ],
    "layers.3.input_norm.bias": [
        "transformer.h.3.ln_1.bias", "backbone.blocks.3.layernorm1.beta",
        "decoder.layers.3.self_attention.linear_qkv.layer_norm_bias",
    ],
    "layers.3.attention.q.weight": [
        "model.layers.3.self_attn.q_proj.weight", "model.layers.3.attention.wq.weight",
        "n.n.layers.3.attention.wq.weight",
        "decoder.layers.3.self_attention.linear_q.weight",
        "decoder.layers.3.self_attention.linear_q_proj.weight",
        "backbone.blocks.3.attention.dense1.weight",
    ],
    "layers.3.attention.k.weight": [
        "model.layers.3.self_attn.k_proj.weight", "model.layers.3.attention.wk.weight",
        "decoder.layers.3.self_attention.linear_k.weight",
        "backbone.blocks.3.attention.dense2.weight",
    ],
    "layers.3.attention.v.bias": [
        "model.layers.3.self_attn.v_proj.bias", "model.layers.3.attention.wv.bias",
        "decoder.layers.3.self_attention.linear_v.bias", "backbone.blocks.3.attention.dense3.bias",
    ],
    "layers.3.attention.qkv.weight": [
        "transformer.h.3.attn.c_attn.weight", "model.layers.3.self_attn.qkv_proj.weight",
        "gpt_neox.layers.3.attention.query_key_value.weight",
        "decoder.layers.3.self_attention.linear_qkv.weight",
        "language_model.encoder.layers.3.self_attention.query_key_value.weight",
        "model.layers.3.attention.w_qkv.weight",
    ],
    "layers.3.attention.q_norm.weight": [
        "model.layers.3.self_attn.q_norm.weight",
        "decoder.layers.3.self_attention.q_layernorm.weight",
        "model.layers.3.self_attn.q_a_layernorm.weight", "model.layers.3.attention.lq_norm.weight",
        "decoder.layers.3.self_attention.linear_q_up_proj.layer_norm_weight",
    ],
    "layers.3.attention.k_norm.weight": [
        "model.layers.3.self_attn.k_norm.weight",
        "decoder.layers.3.self_attention.k_layernorm.weight",
        "model.layers.3.self_attn.kv_a_layernorm.weight",
        "decoder.layers.3.self_attention.kv_layernorm.weight",
        "model.layers.3.attention.lkv_norm.weight",
        "decoder.layers.3.self_attention.linear_kv_up_proj.layer_norm_weight",
    ],
    "layers.3.attention.out.weight": [
        "model.layers.3.self_attn.o_proj.weight", "transformer.h.3.attn.c_proj.weight",
        "decoder.layers.3.self_attention.linear_proj.weight",
        "language_model.encoder.layers.3.self_attention.dense.weight",
        "model.layers.3.attention.wo.weight", "backbone.blocks.3.attention.projection.weight",
    ],
    "layers.3.post_attention_norm.weight": [
        "model.layers.3.post_attention_layernorm.weight", "transformer.h.3.ln_2.weight",
        "decoder.layers.3.pre_mlp_layernorm.weight",
        "decoder.layers.3.mlp.linear_fc1.layer_norm_weight",
        "language_model.encoder.layers.3.post_attention_norm.weight",
        "language_model.encoder.layers.3.post_attention_layernorm.weight",
        "model.layers.3.ffn_norm.weight",
        "backbone.blocks.3.layernorm2.gamma", "n.n.layers.3.post_norm.weight",
    ],
    "layers.3.mlp.gate_proj.weight": [
        "model.layers.3.mlp.gate_proj.weight", "model.layers.3.feed_forward.w1.weight",
        "decoder.layers.3.mlp.gating.weight", "n.n.layers.3.mlp.w1.weight",
    ],
    "layers.3.mlp.up_proj.weight": [
        "model.layers.3.mlp.up_proj.weight", "model.layers.3.feed_forward.w3.weight",
        "decoder.layers.3.mlp.hidden.weight", "n.n.layers.3.mlp.w3.weight",
    ],
    "layers.3.mlp.gate_up_proj.weight": [
        "model.layers.3.mlp.gate_up_proj.weight", "transformer.h.3.mlp.c_fc.weight",
        "decoder.layers.3.mlp.linear_fc1.weight",
        "language_model.encoder.layers.3.mlp.dense_h_to_4h.weight",
        "model.layers.3.feed_forward.w_gate_hidden.weight",
        "backbone.blocks.3.output.mapping.weight",
    ],
    "layers.3.mlp.down_proj.weight": [
        "model.layers.3.mlp.down_proj.weight", "transformer.h.3.mlp.c_proj.weight",
        "decoder.layers.3.mlp.linear_fc2.weight",
        "language_model.encoder.layers.3.mlp.dense_4h_to_h.weight",
        "model.layers.3.feed_forward.w2.weight", "backbone.blocks.3.output.projection.weight",
    ],
    "layers.3.mlp.router.weight": [
        "model.layers.3.mlp.gate.weight", "model.layers.3.block_sparse_moe.gate.weight",
        "model.layers.3.mlp.router.weight",
        "decoder.layers.3.mlp.router.weight",
        "model.layers.3.feed_forward.routed_experts.router.dense.weight",
        "model.layers.3.feed_forward.routed_experts.router_dense.weight",
        "model.layers.3.feed_forward.router.dense.weight",
    ],
    "layers.3.mlp.router.expert_bias": [
        "model.layers.3.mlp.gate.e_score_correction_bias",
        "decoder.layers.3.mlp.router.expert_bias",
        "model.layers.3.feed_forward.routed_experts.router.router.topk_bias",
        "model.layers.3.feed_forward.routed_experts.topk_bias", "decoder.layers.3.mlp.expert_bias",
    ],
    "layers.3.mlp.experts.5.gate_proj.weight": [
        "model.layers.3.mlp.experts.5.gate_proj.weight",
        "model.layers.3.block_sparse_moe.experts.5.w1.weight",
    ],
    "layers.3.mlp.experts.5.up_proj.weight": [
        "model.layers.3.mlp.experts.5.up_proj.weight",
        "model.layers.3.block_sparse_moe.experts.5.w3.weight",
    ],
    "layers.3.mlp.experts.5.down_proj.weight": [
        "model.layers.3.mlp.experts.5.down_proj.weight",
        "model.layers.3.block_sparse_moe.experts.5.w2.weight",
        "decoder.layers.3.mlp.experts.local_experts.5.linear_fc2.weight",
        "decoder.layers.3.mlp.experts.linear_fc2.weight5",
        "language_model.encoder.layers.3.mlp.local_experts.5.dense_4h_to_h.weight",
    ],
    "layers.3.mlp.experts.1.gate_up_proj.weight": [
        "decoder.layers.3.mlp.experts.local_experts.1.linear_fc1.weight",
        "decoder.layers.3.mlp.experts.linear_fc1.weight1",
        "language_model.encoder.layers.3.mlp.local_experts.1.dense_h_to_4h.weight",
    ],
    "layers.3.mlp.experts.gate_up_proj.weight": [
        "model.layers.3.mlp.experts.gate_up_proj", "decoder.layers.3.mlp.experts.weight1",
        "model.layers.3.feed_forward.routed_experts.ffn.w1",
    ],
    "layers.3.mlp.experts.gate_proj.weight": [
        "model.layers.3.feed_forward.routed_experts.ffn.w1.weight",
    ],
    "layers.3.mlp.experts.down_proj.weight": [
        "model.layers.3.mlp.experts.down_proj", "decoder.layers.3.mlp.experts.weight2",
        "model.layers.3.feed_forward.routed_experts.ffn.w2",
        "model.layers.3.feed_forward.routed_experts.ffn.w2.weight",
    ],
    "layers.3.mlp.shared_experts.gate_proj.weight": [
        "model.layers.3.mlp.shared_experts.gate_proj.weight",
        "model.layers.3.mlp.shared_expert.gate_proj.weight",
        "model.layers.3.feed_forward.shared_experts.w1.weight",
    ],
    "layers.3.mlp.shared_experts.gate_up_proj.weight": [
        "decoder.layers.3.mlp.shared_experts.linear_fc1.weight",
    ],
    "layers.3.mlp.shared_experts.down_proj.weight": [
        "decoder.layers.3.mlp.shared_experts.linear_fc2.weight",
        "model.layers.3.feed_forward.shared_experts.w2.weight",
    ],
    "layers.3.mlp.shared_gate.weight": [
        "model.layers.3.mlp.shared_expert_gate.weight",
        "decoder.layers.3.mlp.shared_experts.gate_weight",
        "model.layers.3.feed_forward.shared_experts_gate.weight",
        "decoder.layers.3.mlp.shared_experts.shared_experts_gate.weight",
    ],
    "layers.3.attention.q_a.weight": [
        "model.layers.3.self_attn.q_a_proj.weight",
        "decoder.layers.3.self_attention.linear_q_down_proj.weight",
        "model.layers.3.attention.q2l_proj.weight",
    ],
    "layers.3.attention.q_b.weight": [
        "model.layers.3.self_attn.q_b_proj.weight",
        "decoder.layers.3.self_attention.linear_q_up_proj.weight",
        "decoder.layers.3.self_attention.linear_qb.weight",
    ],
    "layers.3.attention.kv_a.weight": [
        "model.layers.3.self_attn.kv_a_proj_with_mqa.weight",
        "decoder.layers.3.self_attention.linear_kv_down_proj.weight",
    ],
    "layers.3.attention.kv_b.weight": [
        "model.layers.3.self_attn.kv_b_proj.weight",
        "decoder.layers.3.self_attention.linear_kv_up_proj.weight",
        "decoder.layers.3.self_attention.linear_kvb.weight",
    ],
    "final_norm.weight": [
        "model.norm.weight", "transformer.ln_f.weight", "decoder.final_layernorm.weight",
        "language_model.encoder.final_norm.weight", "language_model.encoder.final_layernorm.weight",
        "model.norm_out.weight", "backbone.layernorm.gamma", "n.n.norm.weight",
    ],
    "head.weight": [
        "lm_head.weight", "output_layer.weight", "language_model.output_layer.weight",
        "word_embeddings_for_head.weight", "n.n.lm_head.weight", "output.weight",
    ],
    "mtp.1.enorm.weight": ["mtp.layers.1.enorm.weight",
    "model.mtp_hidden_fusers.1.norm_emb.weight"],
    "mtp.1.hnorm.weight": ["mtp.layers.1.hnorm.weight", "model.mtp_hidden_fusers.1.norm.weight"],
    "mtp.1.eh_proj.weight": ["mtp.layers.1.eh_proj.weight",
    "model.mtp_hidden_fusers.1.dense.weight"],
    "mtp.1.final_norm.weight": ["mtp.layers.1.final_layernorm.weight", "model.mtp_norms.1.weight"],
    "mtp.1.block.attention.qkv.weight": [
        "mtp.layers.1.transformer_layer.self_attention.linear_qkv.weight",
        "mtp.layers.1.mtp_model_layer.self_attention.linear_qkv.weight",
    ],
}  # fmt: skip

#: canonical module: what dumps call its scope, or an operator in it
SCOPES = {
    "layers.0.attention.q": [
        "Default/n-WithLoss/n-TinyLlama/layers-CellList/0-Block/attention-Attention/wq-Dense",
        "Default/n-WithLoss/n-TinyLlama/layers-CellList/0-Block/attention-Attention/wq-Dense/MatMul-op0",
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.attention.wq",
        "Module.model.layers.0.self_attn.q_proj.Linear.forward.0",
        "Cell.model.layers.0.attention.wq.Dense.backward.0",
        "Module.model.layers.0.self_attn.q_proj.Linear.parameters_grad.0",
        "layers.0.attention.wq.Linear.0.forward",
    ],
    "layers.0.input_norm": [
        "Default/n-WithLoss/n-TinyLlama/layers-CellList/0-Block/input_norm-RMSNorm/Add-op0",
        "Gradients/Default/n-WithLoss/n-TinyLlama/layers-CellList/0-Block/input_norm-RMSNorm/Grad_Pow/Mul-op3",
        "recompute_Default/net-Net/decoder-TransformerBlock/layers-CellList/0-TransformerLayer/input_layernorm-RMSNorm",
    ],
    "layers.12.mlp.gate_proj": [
        "Cell.model.layers.12.feed_forward.w1.Dense.forward.0",
        "layers.12.mlp.gate_proj",
    ],
    "layers.2": [
        "model.layers.2",
        "Default/net-Net/layers-CellList/2-Block/Add-op7",
        "transformer.h.2",
    ],
    "layers.2.mlp": [
        "model.layers.2.feed_forward",
        "decoder.layers.2.mlp",
        "model.layers.2.block_sparse_moe",
    ],
    "embedding": [
        "Default/n-WithLoss/n-TinyLlama/embedding-Embedding/Gather-op0",
        "model.tok_embeddings",
    ],
    "final_norm": [
        "Gradients/Default/n-WithLoss/n-TinyLlama/norm-RMSNorm/Grad_Mul/Mul-op0",
        "model.norm_out",
    ],
    "head": ["Default/n-WithLoss/n-TinyLlama/lm_head-Dense", "lm_head"],
    "layers.0.attention.rope": ["model.layers.0.self_attn.rotary_emb"],
    "": [
        "",
        "Default",
        "Default/MatMul-op5",
        "Expand/_SiLU/Mul-op0",
        "Default/n-WithLoss/Sub-op0",
        "model",
        "layers",
    ],
}


@pytest.mark.parametrize(
    ("name", "path"), [(name, path) for path, names in PARAMETERS.items() for name in names]
)
def test_parameter_of_every_family(rules: Rules, name: str, path: str) -> None:
    assert rules.resolve_parameter(name) == path


@pytest.mark.parametrize(
    ("name", "path"), [(name, path) for path, names in SCOPES.items() for name in names]
)
def test_scope_of_every_format(rules: Rules, name: str, path: str) -> None:
    assert rules.resolve_scope(name) == path


@pytest.mark.parametrize(
    "name",
    [
        "module.module.decoder.layers.7.self_attention.linear_proj.weight",
        "_orig_mod.model.layers.7.self_attn.o_proj.weight",
        "model.layers.7._checkpoint_wrapped_module.self_attn.o_proj.weight",
        "_fsdp_wrapped_module.model.layers.7._fsdp_wrapped_module.self_attn.o_proj.weight",
        "network._backbone.anything.else.layers.7.attention.wo.weight",
    ],
)
def test_wrappers_do_not_matter(rules: Rules, name: str) -> None:
    assert rules.resolve_parameter(name) == "layers.7.attention.out.weight"


def test_optimizer_states_are_not_their_parameters(rules: Rules) -> None:
    states = ["moment1.model.layers.0.ffn_norm.weight", "adam_m.model.layers.0.ffn_norm.weight"]
    assert {rules.resolve_parameter(name) for name in states} == {
        "exp_avg.layers.0.post_attention_norm.weight"
    }
    assert rules.resolve_parameter("adam_v.model.norm_out.weight") == "exp_avg_sq.final_norm.weight"


def test_towers_have_different_names(rules: Rules) -> None:
    assert (
        rules.resolve_parameter("visual.blocks.0.attn.qkv.weight")
        == "vision.layers.0.attention.qkv.weight"
    )
    assert (
        rules.resolve_parameter("language_model.model.layers.0.self_attn.qkv_proj.weight")
        == "layers.0.attention.qkv.weight"
    )


def test_unknown_below_a_layer_is_kept_and_unknown_elsewhere_is_nothing(rules: Rules) -> None:
    assert rules.resolve_parameter("model.layers.4.self_attn.sinks") == "layers.4.attention.sinks"
    assert (
        rules.resolve_scope("model.layers.4.self_attn.indexer.wq_b")
        == "layers.4.attention.indexer.wq_b"
    )
    assert rules.resolve_parameter("backbone.stem.conv.weight") == ""
    assert rules.resolve_parameter("learning_rate") == rules.resolve_parameter("") == ""


def test_names_that_two_parameters_would_share_are_preceded_by_their_tower(rules: Rules) -> None:
    names = [
        "model.encoder.layers.0.fc1.weight",
        "model.decoder.layers.0.fc1.weight",
        "model.decoder.layers.0.norm1.bias",
    ]
    resolved = rules.resolve_parameters(names)
    first, second, other = resolved.values()
    assert first.replace("encoder", "decoder") == second != first
    assert other.startswith("decoder.layers.0.")


def test_names_that_nothing_tells_apart_are_given_to_none(rules: Rules) -> None:
    names = ["layers.0.fc1.weight", "h.0.fc1.weight", "lm_head.weight", "global_step"]
    assert rules.resolve_parameters(names) == {"lm_head.weight": "head.weight"}


def test_parts_of_a_fused_parameter(rules: Rules) -> None:
    qkv = rules.split_path("layers.2.attention.qkv.bias")
    assert qkv[0] == (
        "layers.2.attention.q.bias",
        "layers.2.attention.k.bias",
        "layers.2.attention.v.bias",
    )
    assert rules.split_path("layers.2.mlp.experts.1.gate_up_proj.weight") == (
        ("layers.2.mlp.experts.1.gate_proj.weight", "layers.2.mlp.experts.1.up_proj.weight"),
    )
    assert rules.split_path("head.weight") == ()


@pytest.mark.parametrize("path", [path for path in SCOPES if path])
def test_a_canonical_scope_maps_to_itself(rules: Rules, path: str) -> None:
    assert rules.resolve_scope(path) == path


@pytest.mark.parametrize("path", PARAMETERS)
def test_a_canonical_parameter_maps_to_itself(rules: Rules, path: str) -> None:
    assert rules.resolve_parameter(path) == path


def test_each_number_of_a_name_stays_in_its_place(rules: Rules) -> None:
    for layer, expert in ((3, 3), (3, 12), (12, 3), (1000000000001, 4)):
        name = f"model.layers.{layer}.mlp.experts.{expert}.unknown_{layer}.weight"
        path = rules.resolve_parameter(name)
        assert re.findall(r"\d+", path) == [str(layer), str(expert), str(layer)]


class TestTowers:
    def test_layers_of_an_encoder_and_a_decoder_keep_what_tells_them_apart(self):
        names = [
            "model.encoder.layers.0.self_attn.q_proj",
            "model.decoder.layers.0.self_attn.q_proj",
        ]
        scopes, modules = load_rules().resolve_modules(names, [f"{names[0]}.weight"])
        assert list(map(scopes.get, names)) == [
            "encoder.layers.0.attention.q",
            "decoder.layers.0.attention.q",
        ]
        assert modules == {f"{names[0]}.weight": "encoder.layers.0.attention.q"}

    def test_so_do_the_branches_of_a_unet(self):
        names = ["net.down.0.blocks.1.conv", "net.middle.blocks.0.conv", "net.up.0.blocks.1.conv"]
        scopes, _ = load_rules().resolve_modules(names, [])
        assert list(map(scopes.get, names)) == [
            "down.0.layers.1.conv",
            "middle.layers.0.conv",
            "up.0.layers.1.conv",
        ]

    def test_a_model_with_one_tower_has_no_tower_in_its_paths(self):
        names = ["decoder.layers.0.mlp.linear_fc1.weight", "decoder.final_layernorm.weight"]
        _, modules = load_rules().resolve_modules([], names)
        assert modules == {names[0]: "layers.0.mlp.gate_up_proj", names[1]: "final_norm"}


RULES = load_rules()
WORDS = sorted(
    {
        word
        for rule in RULES._scopes.rules
        for word in re.sub(r"\{\w+\}", "7", rule.pattern).split(".")
    }
    | {"0", "weight", "gamma", "foo", "vision", "moment1", "module"}
)


@given(st.lists(st.sampled_from(WORDS), max_size=8))
def test_applying_the_rules_twice_changes_nothing(words: list[str]) -> None:
    once = RULES.resolve_scope(".".join(words))
    assert RULES.resolve_scope(once) == once


@given(st.lists(st.sampled_from(WORDS), max_size=8))
def test_applying_the_rules_twice_to_a_parameter_changes_nothing(words: list[str]) -> None:
    once = RULES.resolve_parameter(".".join(words))
    assert RULES.resolve_parameter(once) == once


@given(st.text(max_size=40))
def test_any_text_is_a_name(text: str) -> None:
    assert isinstance(split_segments(text), tuple)
    assert isinstance(RULES.resolve_scope(text), str)
    assert isinstance(RULES.resolve_parameter(text), str)
