#include "estimator/frameworks/pieces/huggingface/layers/ffn.h"

#include <vector>

#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/eager/tiles.h"
#include "estimator/frameworks/pieces/huggingface/dense_experts.h"
#include "estimator/frameworks/pieces/huggingface/dispatched_experts.h"
#include "estimator/frameworks/pieces/huggingface/fused_adapters.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/megablocks.h"
#include "estimator/frameworks/pieces/huggingface/scattermoe.h"

namespace shardplan::huggingface {

using eager::InRow;
using eager::Tensor;

Tensor outputs_of_chosen(const LayerRun& run, const Experts& experts, const Tensor& input,
                         const Tensor& weights, const ExpertSizes& sizes) {
  switch (run.job.profile.expert_kernels) {
    case ExpertKernels::kGrouped: break;
    case ExpertKernels::kScatterMoe:
      return scattermoe_forward(run.graph, experts, input, weights, sizes);
    case ExpertKernels::kMegablocks:
      return megablocks_forward(run.graph, experts, input, weights, sizes);
  }
  return experts_forward(run.graph, experts, input, weights, sizes);
}

ExpertSizes expert_sizes(const LayerRun& run) {
  const MoeSpec& moe = run.job.model.moe;
  return {.router = run.family.router,
          .tokens = run.sizes.tokens,
          .hidden = run.sizes.hidden,
          .ffn = moe.expert_ffn,
          .experts = moe.num_experts,
          .chosen = moe.topk,
          .is_eager = run.job.profile.eager_experts,
          .is_gated = run.job.model.gated_ffn,
          .activation = run.job.model.activation};
}

namespace {

// Within the module that holds the experts of this rank.
Tensor outputs_over_ranks(const LayerRun& run, const Layer& layer, const Tensor& input,
                          const Tensor& weights, const ExpertSizes& sizes) {
  const ModuleGroup module = {ModuleGroup::Kind::kExperts, layer.place};
  const Tensor output = dispatched_experts(
      run.graph, layer.experts, run.holder.enter(module, input), weights, sizes, run.sizes.ep);
  return run.holder.leave(module, output);
}

// NemotronHMoE: the router sees tokens whole, experts see them projected.
Tensor routed_experts(const LayerRun& run, Layer& layer, const Tensor& input) {
  const MoeSpec& moe = run.job.model.moe;
  ExpertSizes sizes = expert_sizes(run);
  const Tensor weights = weights_of_chosen(run.graph, layer.experts, input, sizes);
  if (run.sizes.ep > 1) {
    return outputs_over_ranks(run, layer, input, weights, sizes);
  }
  if (moe.latent == 0) {
    return outputs_of_chosen(run, layer.experts, input, weights, sizes);
  }
  sizes.hidden = moe.latent;
  const Tensor latent = project(run.graph, layer.latent_input, input);
  return project(run.graph, layer.latent_output,
                 outputs_of_chosen(run, layer.experts, latent, weights, sizes));
}

// Llama4TextMoe.
Tensor all_experts(const LayerRun& run, Layer& layer, const Tensor& input) {
  Experts& experts = layer.experts;
  const ExpertSizes sizes = expert_sizes(run);
  const eager::Module router = {
      .place = &experts.router, .name = "router", .parameters = {&experts.router}};
  const Tensor scores = eager::call_module(run.graph, router, input, [&](const Tensor& x) {
    return scores_of_all(run.graph, experts, x, sizes);
  });
  const eager::Module module = {
      .place = &experts, .name = "experts", .parameters = {&experts.gate_up, &experts.down}};
  const Tensor outputs = eager::call_module(run.graph, module, input, [&](const Tensor& x) {
    return dense_experts_forward(run.graph, experts, x, scores, sizes);
  });
  return with_sum_of_experts(
      run.graph, feed_forward(run.graph, layer.shared_experts, input, run.uses_liger()), outputs);
}

// Qwen2-MoE has its shared expert in front of the others, and weights it; DeepSeek and GLM-4.5 have
// theirs behind them.
Tensor experts(const LayerRun& run, Layer& layer, const Tensor& input) {
  if (run.family.has_dense_experts) {
    return all_experts(run, layer, input);
  }
  if (!layer.shared_experts.is_defined()) {
    return routed_experts(run, layer, input);
  }
  const bool is_gated = run.job.model.moe.shared_gate;
  const auto shared_experts = [&] {
    return feed_forward(run.graph, layer.shared_experts, input, run.uses_liger());
  };
  if (!is_gated && !run.family.runs_shared_experts_first) {
    const Tensor output = routed_experts(run, layer, input);
    return eager::add(run.graph, output, shared_experts());
  }
  Tensor shared = shared_experts();
  const Tensor output = routed_experts(run, layer, input);
  if (is_gated) {
    const Tensor gate = project(run.graph, layer.shared_gate, input);
    shared = eager::multiply(run.graph, eager::sigmoid(run.graph, gate), shared);
  }
  return eager::add(run.graph, output, shared);
}

// Parameters of linear layers, in the order of their modules.
std::vector<eager::Parameter*> parameters_of(const std::vector<Linear*>& linears) {
  std::vector<eager::Parameter*> found;
  for (Linear* linear : linears) {
    for (eager::Parameter* each : {&linear->weight, &linear->bias, &linear->a, &linear->b}) {
      if (each->data.is_defined()) {
        found.push_back(each);
      }
    }
  }
  return found;
}

std::vector<Linear*> linears_of(FeedForward& ffn) {
  return {&ffn.gate_up, &ffn.gate, &ffn.up, &ffn.down};
}

// What an FFN trains.
std::vector<eager::Parameter*> trained_of(FeedForward& ffn) {
  std::vector<eager::Parameter*> found = parameters_of(linears_of(ffn));
  std::erase_if(found, [](const eager::Parameter* each) { return !each->data.requires_grad(); });
  return found;
}

// A block of experts with all that it holds.
eager::Module block_of_experts(Layer& layer) {
  Experts& experts = layer.experts;
  eager::Module block = {
      .place = &layer,
      .name = "mlp",
      .parameters = {&experts.gate_up, &experts.down, &experts.router, &experts.gate_up_bias,
                     &experts.down_bias, &experts.router_bias},
      .is_leaf = true};
  std::vector<Linear*> others = linears_of(layer.shared_experts);
  others.insert(others.end(), {&layer.shared_gate, &layer.latent_input, &layer.latent_output});
  const std::vector<eager::Parameter*> beside = parameters_of(others);
  block.parameters.insert(block.parameters.end(), beside.begin(), beside.end());
  return block;
}

// Of a layer whose FFN is its experts.
bool has_experts_alone(const Layer& layer) {
  return layer.experts.down.data.is_defined() && !layer.ffn.is_defined();
}

Tensor ffn_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  const InRow row(run.graph.tape, kFfnRow);
  const FeedForward& ffn = layer.ffn;
  if (run.fuses_adapters() && have_adapters({&ffn.gate, &ffn.up, &ffn.down})) {
    return fused_feed_forward(run.graph, ffn, input);
  }
  return has_experts_alone(layer) ? experts(run, layer, input)
                                  : feed_forward(run.graph, layer.ffn, input, run.uses_liger());
}

}  // namespace

Tensor ffn(const LayerRun& run, Layer& layer, const Tensor& input) {
  const eager::Module module =
      has_experts_alone(layer) ? block_of_experts(layer) : eager::Module{&layer, "mlp", {}};
  const std::int64_t tiles = run.job.profile.ffn_tiles;
  if (tiles > 0 && !module.is_leaf) {
    return eager::tiled(run.graph, input, run.sizes.sequence / run.sizes.cp, tiles,
                        trained_of(layer.ffn),
                        [&run, &layer](const Tensor& x) { return ffn_output(run, layer, x); });
  }
  return eager::call_module(run.graph, module, input,
                            [&](const Tensor& x) { return ffn_output(run, layer, x); });
}

}  // namespace shardplan::huggingface
