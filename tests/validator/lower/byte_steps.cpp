// Which step of the estimator an operation belongs to. A pass that writes new operations adds rows
// here; an operation without a row is a difference.

#include "tests/validator/lower/byte_equality.h"

namespace shardplan {
namespace {

using enum Where;

OperationStep in_layer(std::string_view phase, std::string_view label, Step step) {
  return {.phase = phase, .label = label, .step = step};
}

OperationStep at_end(std::string_view phase, std::string_view label, Where where, Step step) {
  return {.phase = phase, .label = label, .where = where, .step = step};
}

// Several times in a layer: the steps of the first ones and of the last one. An only one is first.
OperationStep runs_on(std::string_view phase, std::string_view label, Step first, Step others) {
  return {
      .phase = phase, .label = label, .step = first, .steps = std::array{first, others, others}};
}

// Likewise, but an only one is the last.
OperationStep ends_with(std::string_view phase, std::string_view label, Step others, Step last) {
  return {.phase = phase, .label = label, .step = last, .steps = std::array{others, others, last}};
}

// Behind the layers, over chunks of tokens.
OperationStep in_loss(std::string_view label, Step only, Step first, Step last) {
  return {.phase = "forward",
          .label = label,
          .where = kBehindLayers,
          .step = only,
          .steps = std::array{first, Step::kForwardLossProducts, last}};
}

OperationStep between(std::string_view phase, std::string_view label, Phase state) {
  return {.phase = phase, .label = label, .where = kNoBlock, .state = state};
}

std::vector<OperationStep> forward_layer() {
  return {
      in_layer("forward", "attention.norm", Step::kForwardNorm),
      in_layer("forward", "attention.gathered_input", Step::kForwardQkvGather),
      in_layer("forward", "attention.qkv", Step::kForwardQkv),
      in_layer("forward", "attention.rope", Step::kForwardLayout),
      in_layer("forward", "attention.gathered_key_values.own", Step::kForwardKeyValues),
      in_layer("forward", "attention.gathered_key_values", Step::kForwardKeyValues),
      in_layer("forward", "attention.core", Step::kForwardAttention),
      in_layer("forward", "attention.projection", Step::kForwardProjection),
      in_layer("forward", "attention.projection.reduce", Step::kForwardProjectionReduce),
      in_layer("forward", "ffn.norm", Step::kForwardFfnNorm),
      in_layer("forward", "ffn.gathered_input", Step::kForwardFc1Gather),
      in_layer("forward", "ffn.gate_up", Step::kForwardFc1),
      in_layer("forward", "ffn.swiglu", Step::kForwardActivation),
      in_layer("forward", "ffn.down", Step::kForwardFc2),
      in_layer("forward", "ffn.down.reduce", Step::kForwardFc2Reduce),
      {.phase = "forward", .label = "ffn.residual", .step = Step::kForwardOutput, .enters = true},
  };
}

// Ring attention: hops in forward and again in backward under recomputation, and backward.
std::vector<OperationStep> ring_steps() {
  return {
      in_layer("forward", "attention.ring_key_values.own", Step::kForwardKeyValues),
      runs_on("forward", "attention.ring_key_values.shift", Step::kForwardKeyValues,
              Step::kForwardRingCopy),
      in_layer("forward", "attention.ring_output", Step::kForwardRingCopy),
      in_layer("forward", "attention.block", Step::kForwardRingBlock),
      ends_with("forward", "attention.merge", Step::kForwardRingBlock, Step::kForwardRingMerge),
      in_layer("forward", "attention.ring_output.rounded", Step::kForwardRingRound),
      in_layer("replay", "attention.ring_key_values.own", Step::kBackwardKeyValuesAgain),
      runs_on("replay", "attention.ring_key_values.shift", Step::kBackwardKeyValuesAgain,
              Step::kBackwardRingCopyAgain),
      in_layer("replay", "attention.ring_output", Step::kBackwardRingCopyAgain),
      in_layer("replay", "attention.block", Step::kBackwardRingBlockAgain),
      ends_with("replay", "attention.merge", Step::kBackwardRingBlockAgain,
                Step::kBackwardRingMergeAgain),
      in_layer("replay", "attention.ring_output.rounded", Step::kBackwardRingRoundAgain),
      in_layer("backward", "attention.ring_key_values.own", Step::kBackwardKeyValues),
      runs_on("backward", "attention.ring_key_values.shift", Step::kBackwardKeyValues,
              Step::kBackwardRingKeyValues),
      in_layer("backward", "attention.ring_query_gradient", Step::kBackwardRingQueries),
      in_layer("backward", "attention.ring_key_value_gradients", Step::kBackwardRingKeyValues),
      in_layer("backward", "attention.block", Step::kBackwardRingBlock),
      ends_with("backward", "attention.ring_query_gradient.add", Step::kBackwardRingBlock,
                Step::kBackwardRingAdd),
      ends_with("backward", "attention.ring_key_value_gradients.add", Step::kBackwardRingBlock,
                Step::kBackwardRingAdd),
      in_layer("backward", "attention.ring_query_gradient.rounded", Step::kBackwardRingRound),
      ends_with("backward", "attention.ring_key_value_gradients.shift",
                Step::kBackwardRingKeyValues, Step::kBackwardRingHome),
      in_layer("backward", "attention.ring_key_value_gradients.rounded", Step::kBackwardRingHome),
  };
}

std::vector<OperationStep> backward_layer() {
  return {
      in_layer("backward", "ffn.gathered_gradient", Step::kBackwardFc2Gather),
      in_layer("backward", "ffn.down.input_gradient", Step::kBackwardFc2),
      in_layer("backward", "ffn.swiglu", Step::kBackwardActivation),
      in_layer("backward", "ffn.down.weight_gradient", Step::kBackwardFc2Weight),
      in_layer("replay", "ffn.norm", Step::kBackwardFfnNormAgain),
      in_layer("backward", "ffn.gathered_input", Step::kBackwardFc1Gather),
      in_layer("backward", "ffn.gate_up.input_gradient", Step::kBackwardFc1),
      in_layer("backward", "ffn.norm_gradient.reduce", Step::kBackwardFc1Reduce),
      in_layer("backward", "ffn.gate_up.weight_gradient", Step::kBackwardFc1Weight),
      in_layer("backward", "ffn.norm", Step::kBackwardFfnNorm),
      in_layer("backward", "attention.gathered_gradient", Step::kBackwardProjectionGather),
      in_layer("replay", "attention.gathered_key_values.own", Step::kBackwardKeyValuesAgain),
      in_layer("replay", "attention.gathered_key_values", Step::kBackwardKeyValuesAgain),
      in_layer("replay", "attention.core", Step::kBackwardAttentionAgain),
      in_layer("backward", "attention.projection.input_gradient", Step::kBackwardProjection),
      in_layer("backward", "attention.projection.weight_gradient", Step::kBackwardProjectionWeight),
      in_layer("backward", "attention.gathered_key_values.own", Step::kBackwardKeyValues),
      in_layer("backward", "attention.gathered_key_values", Step::kBackwardKeyValues),
      in_layer("backward", "attention.key_value_gradients", Step::kBackwardKeyValueFill),
      in_layer("backward", "attention.core", Step::kBackwardAttention),
      in_layer("backward", "attention.key_value_gradients.exchange", Step::kBackwardKeyValueReduce),
      in_layer("backward", "attention.key_value_gradients.sum", Step::kBackwardKeyValueReduce),
      in_layer("backward", "attention.rope", Step::kBackwardLayout),
      in_layer("replay", "attention.norm", Step::kBackwardNormAgain),
      in_layer("backward", "attention.gathered_input", Step::kBackwardQkvGather),
      in_layer("backward", "attention.qkv.input_gradient", Step::kBackwardQkv),
      in_layer("backward", "attention.norm_gradient.reduce", Step::kBackwardQkvReduce),
      in_layer("backward", "attention.qkv.weight_gradient", Step::kBackwardQkvWeight),
      in_layer("backward", "attention.norm", Step::kBackwardNorm),
  };
}

std::vector<OperationStep> forward_moe() {
  return {
      in_layer("forward", "router", Step::kForwardRouter),
      in_layer("forward", "router.choices", Step::kForwardChoices),
      in_layer("forward", "router.gathered_counts", Step::kForwardCountsGather),
      in_layer("forward", "router.rows", Step::kForwardRows),
      in_layer("forward", "experts.dispatch", Step::kForwardDispatch),
      in_layer("forward", "router.counts", Step::kForwardCountsReduce),
      in_layer("forward", "shared.gathered_input", Step::kForwardSharedGather),
      in_layer("forward", "shared.gate_up", Step::kForwardSharedFc1),
      in_layer("forward", "shared.swiglu", Step::kForwardSharedActivation),
      in_layer("forward", "experts.gate_up", Step::kForwardFc1),
      in_layer("forward", "experts.swiglu", Step::kForwardActivation),
      in_layer("forward", "shared.down", Step::kForwardSharedFc2),
      in_layer("forward", "shared.down.reduce", Step::kForwardSharedReduce),
      in_layer("forward", "experts.down", Step::kForwardFc2),
      in_layer("forward", "experts.combine", Step::kForwardCombine),
      in_layer("forward", "experts.gathered_output", Step::kForwardOutputGather),
  };
}

// Written again by selective recompute.
std::vector<OperationStep> replayed_moe() {
  return {
      in_layer("replay", "router.norm", Step::kBackwardRouterNormAgain),
      in_layer("replay", "router", Step::kBackwardRouterAgain),
      in_layer("replay", "router.choices", Step::kBackwardChoicesAgain),
      in_layer("replay", "router.gathered_counts", Step::kBackwardCountsGatherAgain),
      in_layer("replay", "router.rows", Step::kBackwardRowsAgain),
      in_layer("replay", "experts.dispatch", Step::kBackwardDispatchAgain),
      in_layer("replay", "router.counts", Step::kBackwardCountsReduceAgain),
      in_layer("replay", "shared.gathered_input", Step::kBackwardSharedGatherAgain),
      in_layer("replay", "shared.gate_up", Step::kBackwardSharedFc1Again),
      in_layer("replay", "shared.swiglu", Step::kBackwardSharedActivationAgain),
      in_layer("replay", "experts.gate_up", Step::kBackwardFc1Again),
      in_layer("replay", "experts.swiglu", Step::kBackwardActivationAgain),
      in_layer("replay", "shared.gate_up_again", Step::kBackwardSharedReplay),
  };
}

std::vector<OperationStep> backward_moe() {
  return {
      in_layer("backward", "experts.dispatch_gradient", Step::kBackwardCombine),
      in_layer("backward", "shared.gathered_input", Step::kBackwardSharedGather),
      in_layer("backward", "shared.gathered_gradient", Step::kBackwardSharedFc2Gather),
      in_layer("backward", "shared.down.input_gradient", Step::kBackwardSharedFc2),
      in_layer("backward", "shared.swiglu", Step::kBackwardSharedActivation),
      in_layer("backward", "shared.down.weight_gradient", Step::kBackwardSharedFc2Weight),
      in_layer("backward", "shared.gate_up.input_gradient", Step::kBackwardSharedFc1),
      in_layer("backward", "shared.norm_gradient.reduce", Step::kBackwardSharedReduce),
      in_layer("backward", "shared.gate_up.weight_gradient", Step::kBackwardSharedFc1Weight),
      in_layer("backward", "experts.down.input_gradient", Step::kBackwardFc2),
      in_layer("backward", "experts.swiglu", Step::kBackwardActivation),
      in_layer("backward", "experts.down.weight_gradient", Step::kBackwardFc2Weight),
      in_layer("backward", "experts.gate_up.input_gradient", Step::kBackwardFc1),
      in_layer("backward", "experts.combine_gradient", Step::kBackwardFc1Reduce),
      in_layer("backward", "experts.gate_up.weight_gradient", Step::kBackwardFc1Weight),
      in_layer("backward", "router", Step::kBackwardRouter),
      in_layer("backward", "router.input_gradient", Step::kBackwardRouterInput),
      in_layer("backward", "router.weight_gradient", Step::kBackwardRouterWeight),
      in_layer("backward", "ffn.gathered_norm_gradient", Step::kBackwardGradientGather),
  };
}

// Weight gradients in an action of their own.
std::vector<OperationStep> weight_steps() {
  return {
      in_layer("weight", "ffn.gathered_gradient", Step::kWeightFc2Gather),
      in_layer("weight", "ffn.down.weight_gradient", Step::kWeightFc2),
      in_layer("weight", "ffn.gathered_input", Step::kWeightFc1Gather),
      in_layer("weight", "ffn.gate_up.weight_gradient", Step::kWeightFc1),
      in_layer("weight", "shared.gathered_gradient", Step::kWeightSharedFc2Gather),
      in_layer("weight", "shared.down.weight_gradient", Step::kWeightSharedFc2),
      in_layer("weight", "shared.gathered_input", Step::kWeightSharedFc1Gather),
      in_layer("weight", "shared.gate_up.weight_gradient", Step::kWeightSharedFc1),
      in_layer("weight", "experts.down.weight_gradient", Step::kWeightFc2),
      in_layer("weight", "experts.gate_up.weight_gradient", Step::kWeightFc1),
      in_layer("weight", "router.weight_gradient", Step::kWeightRouter),
      in_layer("weight", "attention.gathered_gradient", Step::kWeightProjectionGather),
      in_layer("weight", "attention.projection.weight_gradient", Step::kWeightProjection),
      in_layer("weight", "attention.gathered_input", Step::kWeightQkvGather),
      in_layer("weight", "attention.qkv.weight_gradient", Step::kWeightQkv),
      at_end("weight", "embedding.gathered_gradient", kFirstBlock, Step::kWeightFc2Gather),
      at_end("weight", "embedding.weight_gradient", kFirstBlock, Step::kWeightFc2),
  };
}

std::vector<OperationStep> ends() {
  const Step products = Step::kForwardLossProducts;
  const Step last_products = Step::kForwardLastLossProducts;
  return {
      at_end("forward", "receive", kFirstBlock, Step::kForwardInput),
      at_end("forward", "embedding", kFirstBlock, Step::kForwardInput),
      {.phase = "forward",
       .label = "embedding.reduce",
       .where = kFirstBlock,
       .step = Step::kForwardOutput,
       .enters = true},
      at_end("forward", "send", kBehindLayers, Step::kForwardOutput),
      at_end("forward", "final_norm", kBehindLayers, Step::kForwardNorm),
      at_end("forward", "head.gathered_input", kBehindLayers, Step::kForwardHeadGather),
      in_loss("head", Step::kForwardLogits, Step::kForwardLogits, products),
      in_loss("loss.statistics", Step::kForwardLossStatistics, Step::kForwardLossStatistics,
              products),
      in_loss("loss.gathered_statistics", Step::kForwardLossGather, Step::kForwardLossGather,
              products),
      in_loss("loss", Step::kForwardLoss, Step::kForwardLoss, Step::kForwardLastLoss),
      in_loss("loss.gradient", Step::kForwardLossGradient, Step::kForwardLossGradient,
              Step::kForwardLastLossGradient),
      in_loss("head.input_gradient", last_products, products, last_products),
      in_loss("head.weight_gradient", last_products, products, last_products),
      at_end("forward", "head.input_gradient.reduce", kBehindLayers, Step::kForwardHeadReduce),
      at_end("forward", "final_norm.backward", kBehindLayers, Step::kForwardOutput),
      at_end("backward", "receive", kBehindLayers, Step::kBackwardOutput),
      at_end("backward", "embedding.gathered_gradient", kFirstBlock, Step::kBackwardOutput),
      at_end("backward", "embedding.weight_gradient", kFirstBlock, Step::kBackwardInput),
      at_end("backward", "send", kFirstBlock, Step::kBackwardInput),
      between("reduce", "embedding_gradients", Phase::kReduction),
      between("reduce", "replicated_gradients", Phase::kReduction),
      between("reduce", "gradients", Phase::kReduction),
      between("reduce", "gradient_shards", Phase::kReduction),
      between("update", "gradient_norm", Phase::kGradientNorm),
      between("update", "gradient_norm.reduce", Phase::kGradientNorm),
      between("update", "clip", Phase::kGradientNorm),
      between("update", "adamw", Phase::kOptimizer),
      between("update", "gather_weights", Phase::kParameterGather),
  };
}

// Sequence parallelism. What is gathered is read by copies of this rank's parts, the last of them
// in front of the last gather. What is summed in pieces is exchanged piece by piece, the first one
// in front of the first sum.
void add_sequence_exchange(std::map<std::string, OperationStep, std::less<>>& all) {
  constexpr std::string_view kReduce = ".reduce";
  std::map<std::string, OperationStep, std::less<>> more;
  for (auto& [label, row] : all) {
    if (row.label.ends_with(".gathered_input") || row.label.ends_with(".gathered_gradient")) {
      more.emplace(label + ".own", row);
      row.ends_late = true;
    }
    if (row.where != kNoBlock && row.label.ends_with(kReduce)) {
      const std::string reduced = label.substr(0, label.size() - kReduce.size());
      more.emplace(reduced + ".sum", row);
      row.begins_early = true;
      more.emplace(reduced + ".exchange", row);
      row.begins_early = false;
    }
  }
  all.merge(more);
}

// By "phase.label".
std::map<std::string, OperationStep, std::less<>> all_steps() {
  std::map<std::string, OperationStep, std::less<>> all;
  for (const std::vector<OperationStep>& some :
       {forward_layer(), ring_steps(), backward_layer(), forward_moe(), replayed_moe(),
        backward_moe(), weight_steps(), ends()}) {
    for (const OperationStep& row : some) {
      all.emplace(std::string(row.phase) + "." + std::string(row.label), row);
    }
  }
  add_sequence_exchange(all);
  return all;
}

// One kernel adds to the residual stream and takes the norm of the layer behind.
constexpr OperationStep kAddedNorm = {.phase = "forward",
                                      .label = "attention.norm",
                                      .where = kLayerBefore,
                                      .step = Step::kForwardOutput,
                                      .enters = true};

}  // namespace

const OperationStep* step_of(const Operation& operation, bool is_recomputed_group) {
  static const std::map<std::string, OperationStep, std::less<>> all = all_steps();
  constexpr std::string_view kReplay = "replay.";
  std::string label = operation.label;
  if (is_recomputed_group && label.starts_with(kReplay)) {
    label = "forward." + label.substr(kReplay.size());
  }
  if (operation.kind == OpKind::kAddRmsNormForward && label == "forward.attention.norm") {
    return &kAddedNorm;
  }
  const auto found = all.find(label);
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace shardplan
