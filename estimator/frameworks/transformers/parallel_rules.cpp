#include "estimator/frameworks/transformers/parallel_rules.h"

#include "estimator/frameworks/pieces/huggingface/tuned.h"

namespace shardplan::transformers {
namespace {

bool has_bias_of_rows(const ModelSpec& model) {
  return model.attention_output_bias || (model.ffn_bias && model.has_dense_layers());
}

// Of a model: what its class's plan does not divide layer by layer as Llama's does.
std::string undivided_of_model(const ModelSpec& model) {
  const std::string family = model.family.empty() ? "this model" : model.family;
  if (model.moe.num_experts > 0) {
    return "experts";
  }
  if (!huggingface::exchanges_heads(model) || !huggingface::class_of(model).has_llama_tp_plan) {
    return "model.family " + family + ", whose plan is not Llama's";
  }
  if (model.tied_embeddings) {
    return "tied_embeddings, which make the table a DTensor";
  }
  return has_bias_of_rows(model) ? "biases of attention's output or of the FFN" : "";
}

// Cut Cross Entropy reads the head's weight, of which a plain tensor is this rank's part.
bool takes_head(const FrameworkProfile& profile) {
  return profile.head_loss == HeadLoss::kStock ||
         (profile.head_loss == HeadLoss::kCutCrossEntropy && !profile.tensor_parallel_dtensors);
}

}  // namespace

std::string undivided_by_tp(const Job& job) {
  const FrameworkProfile& profile = job.profile;
  if (const std::string of_model = undivided_of_model(job.model); !of_model.empty()) {
    return of_model;
  }
  return job.adapters.rank > 0                       ? "adapters"
         : job.quantized.kind != Quantization::kNone ? "quantized weights"
         : profile.liger_kernel != LigerKernel::kOff ? "liger_kernel"
         : !takes_head(profile)                      ? "another head_loss than stock"
         : profile.loop != TrainerLoop::kTrainer     ? "another loop than the Trainer's"
         : profile.ffn_tiles > 0                     ? "ffn_tiles"
         : profile.wide_ends                         ? "wide_ends"
                                                     : "";
}

// DeepEP's kernels of one node have configurations for 2, 4 and 8 ranks (v1.2.1 deep_ep/buffer.py
// get_dispatch_config), and axolotl gives it no buffer for more.
std::string why_no_ep(const Job& job, const Plan& plan) {
  const FrameworkProfile& profile = job.profile;
  const bool is_served = plan.ep == 2 || plan.ep == 4 || plan.ep == 8;
  if (profile.moe_dispatcher != MoeDispatcher::kDeepEp) {
    return "moe_dispatcher " + std::string(name_of(profile.moe_dispatcher)) +
           ", where axolotl's experts are dealt to ranks by deepep";
  }
  return !is_served                                   ? "ranks that DeepEP has no kernels for"
         : plan.tp > 1                                ? "tp " + number_text(plan.tp)
         : plan.cp > 1                                ? "cp " + number_text(plan.cp)
         : plan.zero > 0 && profile.fsdp_version == 1 ? "fsdp_version 1"
         : profile.loop != TrainerLoop::kTrainer      ? "another loop than the Trainer's"
         : profile.eager_experts || profile.expert_kernels != ExpertKernels::kGrouped
             ? "other products than grouped ones"
         : profile.quantizes_experts ? "quantizes_experts"
         : job.model.moe.biased_experts || job.model.moe.latent > 0
             ? "experts of model.family " + job.model.family
         : !huggingface::expert_adapters(job).are_none() ? "adapters on experts"
                                                         : "";
}

// Rows of several sequences are none that ring_flash_attn's function of packed ones takes.
std::string why_no_gathered_heads(const Job& job, const Plan& plan) {
  return plan.micro_batch > 1 ? "micro_batch " + number_text(plan.micro_batch) +
                                    ", of which axolotl's ring takes one"
         : job.model.caps_scores ? "caps of scores, which axolotl's ring does not take"
                                 : "";
}

// The mask of every layer is left out, and attention is causal.
std::string why_no_ring(const Job& job, const Plan& plan) {
  const FrameworkProfile& profile = job.profile;
  if (plan.zero == 0 || profile.fsdp_version == 1) {
    return std::string(plan.zero == 0 ? "zero 0" : "fsdp_version 1") +
           ", where rings were read under FSDP2 alone";
  }
  if (profile.loop != TrainerLoop::kTrainer) {
    return "another loop than the Trainer's";
  }
  if (gathers_heads(job, plan)) {
    return why_no_gathered_heads(job, plan);
  }
  if (profile.attention_backend != AttentionBackend::kAuto) {
    return "another attention than scaled_dot_product_attention";
  }
  const bool has_window = std::ranges::any_of(
      job.model.layers, [](const LayerSpec& layer) { return layer.attention_window > 0; });
  return has_window                 ? "layers of a window, which accelerate refuses"
         : profile.packed_sequences ? "packed_sequences, whose mask would be left out"
                                    : "";
}

}  // namespace shardplan::transformers
