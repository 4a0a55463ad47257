// The parameters that are trained, in the order of model.parameters().
#include "estimator/frameworks/pieces/huggingface/model.h"

namespace shardplan::huggingface {

std::vector<eager::Parameter*> CausalLm::trained() {
  std::vector<eager::Parameter*> found;
  const auto take = [&found](eager::Parameter& parameter) {
    if (parameter.is_trained) {
      found.push_back(&parameter);
    }
  };
  const auto take_linear = [&take](Linear& linear) {
    for (eager::Parameter* each : {&linear.weight, &linear.bias, &linear.a, &linear.b,
                                   &linear.scales, &linear.magnitude, &linear.rotation}) {
      take(*each);
    }
  };
  const auto take_ffn = [&](FeedForward& ffn) {
    for (Linear* each :
         {&ffn.gate_up, &ffn.gate, &ffn.up, &ffn.down, &ffn.narrowing, &ffn.widening}) {
      take_linear(*each);
    }
    take(ffn.xielu.positive);
    take(ffn.xielu.negative);
  };
  const auto take_norm = [&take](Norm& norm) {
    take(norm.weight);
    take(norm.bias);
  };
  for (Linear& linear : tower_) { take_linear(linear); }
  take(table_);
  take(positions_);
  take(per_layer_.table);
  take_linear(per_layer_.projection);
  take_norm(per_layer_.norm);
  for (Layer& layer : layers_) {
    LatentProjections& latent = layer.latent;
    DeltaNet& net = layer.delta_net;
    for (eager::Parameter* each : {&net.step_bias, &net.decay_log, &net.convolution}) {
      take(*each);
    }
    for (Linear* each : {&net.joint, &net.joint_scalars, &net.queries_keys_values, &net.gates,
                         &net.rates, &net.decays, &net.output}) {
      take_linear(*each);
    }
    take_norm(net.norm);
    KimiDelta& kimi = layer.kimi_delta;
    for (eager::Parameter* each : {&kimi.convolution, &kimi.decay_log, &kimi.step_bias}) {
      take(*each);
    }
    for (Linear* each : {&kimi.query, &kimi.key, &kimi.value, &kimi.decay_down, &kimi.decay_up,
                         &kimi.rates, &kimi.gate_down, &kimi.gate_up, &kimi.output}) {
      take_linear(*each);
    }
    take_norm(kimi.norm);
    Mamba& mamba = layer.mamba;
    for (eager::Parameter* each : {&mamba.step_bias, &mamba.decay_log, &mamba.skip,
                                   &mamba.convolution, &mamba.convolution_bias}) {
      take(*each);
    }
    take_norm(mamba.norm);
    for (Linear* each :
         {&layer.convolution.input, &layer.convolution.output, &mamba.input, &mamba.output}) {
      take_linear(*each);
    }
    SelectiveScan& selective = layer.selective;
    for (eager::Parameter* each : {&selective.decay_log, &selective.skip, &selective.convolution,
                                   &selective.convolution_bias}) {
      take(*each);
    }
    for (Linear* each :
         {&selective.input, &selective.selection, &selective.steps, &selective.output}) {
      take_linear(*each);
    }
    for (Norm* each : {&selective.step_norm, &selective.input_norm, &selective.output_norm}) {
      take_norm(*each);
    }
    take(layer.convolution.weight);
    take(layer.convolution.bias);
    for (Linear* each : {&layer.query, &latent.query_down, &latent.query_up, &latent.key_value_down,
                         &latent.key_value_up, &layer.key, &layer.value, &layer.output,
                         &layer.query_key_value, &layer.gate}) {
      take_linear(*each);
    }
    for (Norm* each :
         {&layer.query_norm, &layer.key_norm, &latent.query_norm, &latent.key_value_norm}) {
      take_norm(*each);
    }
    take_ffn(layer.ffn);
    Experts& experts = layer.experts;
    take(layer.sinks);
    for (eager::Parameter* each :
         {&experts.gate_up, &experts.gate_up_bias, &experts.down, &experts.down_bias,
          &experts.router, &experts.router_bias, &experts.input_scale, &experts.expert_scale,
          &experts.gate_up_a, &experts.gate_up_b, &experts.down_a, &experts.down_b,
          &experts.router_a, &experts.router_b}) {
      take(*each);
    }
    take_ffn(layer.shared_experts);
    for (Linear* each : {&layer.shared_gate, &layer.latent_input, &layer.latent_output}) {
      take_linear(*each);
    }
    for (Norm* each :
         {&layer.attention_norm, &layer.ffn_norm, &layer.after_attention, &layer.after_ffn,
          &layer.beside_experts, &layer.experts_input, &layer.after_experts}) {
      take_norm(*each);
    }
    take_linear(layer.per_layer.gate);
    take_linear(layer.per_layer.projection);
    take_norm(layer.per_layer.norm);
  }
  take_norm(final_norm_);
  take_linear(head_);
  take_linear(label_head_);
  return found;
}

std::vector<eager::Parameter*> CausalLm::trained_factors() {
  std::vector<eager::Parameter*> factors = trained();
  std::erase_if(factors, [](const eager::Parameter* each) {
    return each->is_end || each->rows == each->data.elements;
  });
  return factors;
}

}  // namespace shardplan::huggingface
