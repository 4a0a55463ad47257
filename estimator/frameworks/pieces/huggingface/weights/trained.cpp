// The parameters that are trained, in the order of model.parameters().
#include <utility>

#include "estimator/frameworks/pieces/huggingface/model.h"

namespace shardplan::huggingface {
namespace {

class Trained {
 public:
  std::vector<eager::Parameter*> found;

  template <typename... Weights>
  void take_all(Weights&... weights) {
    (take(weights), ...);
  }
  void take(eager::Parameter& parameter) {
    if (parameter.is_trained) {
      found.push_back(&parameter);
    }
  }
  void take(Linear& linear) {
    take_all(linear.weight, linear.bias, linear.a, linear.b, linear.scales, linear.magnitude,
             linear.rotation);
  }
  void take(Norm& norm) { take_all(norm.weight, norm.bias); }
  void take(FeedForward& ffn) {
    take_all(ffn.gate_up, ffn.gate, ffn.up, ffn.down, ffn.narrowing, ffn.widening);
    take_all(ffn.xielu.positive, ffn.xielu.negative);
  }
  void take(DeltaNet& net) {
    take_all(net.step_bias, net.decay_log, net.convolution);
    take_all(net.joint, net.joint_scalars, net.queries_keys_values, net.gates, net.rates,
             net.decays, net.output, net.norm);
  }
  void take(KimiDelta& kimi) {
    take_all(kimi.convolution, kimi.decay_log, kimi.step_bias);
    take_all(kimi.query, kimi.key, kimi.value, kimi.decay_down, kimi.decay_up, kimi.rates,
             kimi.gate_down, kimi.gate_up, kimi.output, kimi.norm);
  }
  void take(Mamba& mamba) {
    take_all(mamba.step_bias, mamba.decay_log, mamba.skip, mamba.convolution,
             mamba.convolution_bias, mamba.norm);
  }
  void take(SelectiveScan& selective) {
    take_all(selective.decay_log, selective.skip, selective.convolution,
             selective.convolution_bias);
    take_all(selective.input, selective.selection, selective.steps, selective.output);
    take_all(selective.step_norm, selective.input_norm, selective.output_norm);
  }
  void take(Experts& experts) {
    take_all(experts.gate_up, experts.gate_up_bias, experts.down, experts.down_bias, experts.router,
             experts.router_bias, experts.input_scale, experts.expert_scale, experts.gate_up_a,
             experts.gate_up_b, experts.down_a, experts.down_b, experts.router_a, experts.router_b);
  }
  void take(Layer& layer) {
    take_all(layer.delta_net, layer.kimi_delta, layer.mamba);
    take_all(layer.convolution.input, layer.convolution.output, layer.mamba.input,
             layer.mamba.output);
    take_all(layer.selective, layer.convolution.weight, layer.convolution.bias);
    LatentProjections& latent = layer.latent;
    take_all(layer.query, latent.query_down, latent.query_up, latent.key_value_down,
             latent.key_value_up, layer.key, layer.value, layer.output, layer.query_key_value,
             layer.gate);
    take_all(layer.query_norm, layer.key_norm, latent.query_norm, latent.key_value_norm);
    take_all(layer.ffn, layer.sinks, layer.experts, layer.shared_experts);
    take_all(layer.shared_gate, layer.latent_input, layer.latent_output);
    take_all(layer.attention_norm, layer.ffn_norm, layer.after_attention, layer.after_ffn,
             layer.beside_experts, layer.experts_input, layer.after_experts);
    take_all(layer.per_layer.gate, layer.per_layer.projection, layer.per_layer.norm);
  }
};

}  // namespace

std::vector<eager::Parameter*> CausalLm::trained() {
  Trained trained;
  for (Linear& linear : tower_) { trained.take(linear); }
  trained.take_all(table_, positions_);
  trained.take_all(per_layer_.table, per_layer_.projection, per_layer_.norm);
  for (Layer& layer : layers_) { trained.take(layer); }
  trained.take_all(final_norm_, head_, label_head_);
  return std::move(trained.found);
}

std::vector<eager::Parameter*> CausalLm::trained_factors() {
  std::vector<eager::Parameter*> factors = trained();
  std::erase_if(factors, [](const eager::Parameter* each) {
    return each->is_end || each->rows == each->data.elements;
  });
  return factors;
}

}  // namespace shardplan::huggingface
