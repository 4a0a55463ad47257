// The weights of a block of experts: those that are routed to, their router, and what stands beside
// them.
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/model.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"

namespace shardplan::huggingface {

using eager::Parameter;

// Packed values are a parameter of bytes: of 4 bits a column, of 8 bits as the weights lie. 8 bits
// are unpacked to fp32 (bitsandbytes 0.49 functional.py int8_vectorwise_dequant).
void CausalLm::load_experts(Experts& experts, Parameter& weights, Parameter& packed,
                            std::string_view name, eager::LinearShape shape) {
  const std::int64_t elements = shape.inputs * shape.outputs;
  const std::int64_t num_experts = job_.model.moe.num_experts;
  if (!job_.profile.quantizes_experts || job_.quantized.kind == Quantization::kNone) {
    weights.whole_elements = sizes_.ep > 1 ? elements : 0;
    const Shape own = {num_experts / sizes_.ep, elements / num_experts};
    return load(weights, {"experts.", name}, own, weights_);
  }
  experts.quantized = job_.quantized;
  const bool is_int8 = job_.quantized.kind == Quantization::kInt8;
  const std::vector<std::int64_t> bytes = quantized_bytes(job_.quantized, shape);
  const Shape of_packed =
      is_int8 ? Shape{num_experts, bytes.front() / num_experts} : Shape{bytes.front(), 1};
  holder_.load(packed, kQuantizedRow, of_packed, DType::kBool, false);
  const eager::InRow row(graph_.tape, kQuantizedRow);
  for (std::size_t i = 1; i < bytes.size(); ++i) {
    experts.scales.push_back(graph_.make(bytes[i], DType::kBool));
  }
  weights.data.elements = elements;
  weights.data.dtype = is_int8 ? DType::kFp32 : weights_;
}

void CausalLm::build_experts(Layer& layer) {
  const MoeSpec& moe = job_.model.moe;
  const std::int64_t wide = (job_.model.gated_ffn ? 2 : 1) * moe.expert_ffn;
  Experts& experts = layer.experts;
  const auto load_rows = [&](Parameter& parameter, const Name& name, std::int64_t columns) {
    load(parameter, name, {moe.num_experts, columns}, weights_);
  };
  const std::string_view router = moe.biased_router ? "router" : "gate";
  module_ = "mlp.";
  const std::int64_t seen = moe.latent > 0 ? moe.latent : sizes_.hidden;
  if (sizes_.ep > 1) {
    holder_.begin_group({ModuleGroup::Kind::kExperts, layer_});
  }
  load_experts(experts, experts.gate_up, experts.gate_up_packed, "gate_up_proj",
               {.inputs = seen, .outputs = moe.num_experts * wide});
  load_experts(experts, experts.down, experts.down_packed, "down_proj",
               {.inputs = moe.expert_ffn, .outputs = moe.num_experts * seen});
  if (sizes_.ep > 1) {
    holder_.begin_group({ModuleGroup::Kind::kLayer, layer_});
  }
  if (moe.beside_dense) {
    load(experts.input_scale, {"scale", ""}, {sizes_.hidden, 1}, weights_);
    load_rows(experts.expert_scale, {"per_expert_scale", ""}, 1);
  }
  load_rows(experts.router, {router, ".weight"}, sizes_.hidden);
  if (moe.biased_experts) {
    load_rows(experts.gate_up_bias, {"experts.", "gate_up_proj_bias"}, wide);
    load_rows(experts.down_bias, {"experts.", "down_proj_bias"}, sizes_.hidden);
  }
  if (moe.biased_router) {
    load_rows(experts.router_bias, {router, ".bias"}, 1);
  }
  if (const ExpertAdapters ranks = expert_adapters(job_); !ranks.are_none()) {
    const auto load = [&](Parameter& parameter, Shape shape) {
      if (shape.elements() > 0) {
        holder_.load(parameter, kAdapterRow, shape, job_.adapters.dtype, true);
      }
    };
    load(experts.gate_up_a, {ranks.gate_up * moe.num_experts, sizes_.hidden});
    load(experts.gate_up_b, {2 * moe.expert_ffn, ranks.gate_up * moe.num_experts});
    load(experts.down_a, {ranks.down * moe.num_experts, moe.expert_ffn});
    load(experts.down_b, {sizes_.hidden, ranks.down * moe.num_experts});
    load(experts.router_a, {ranks.router, sizes_.hidden});
    load(experts.router_b, {moe.num_experts, ranks.router});
  }
  if (moe.shared_ffn > 0) {
    module_ = moe.shared_gate ? "mlp.shared_expert." : "mlp.shared_experts.";
    build_ffn(layer.shared_experts, moe.shared_ffn, false);
  }
  module_ = "mlp.";
  if (moe.latent > 0) {
    const LinearLayer place = LinearLayer::kLatent;
    build_linear(layer.latent_input, place, "fc1_latent_proj", {sizes_.hidden, moe.latent}, false);
    build_linear(layer.latent_output, place, "fc2_latent_proj", {moe.latent, sizes_.hidden}, false);
  }
  if (moe.shared_gate) {
    build_linear(layer.shared_gate, LinearLayer::kSharedGate, "shared_expert_gate",
                 {sizes_.hidden, 1}, false);
  }
}

}  // namespace shardplan::huggingface
