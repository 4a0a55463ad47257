#include "estimator/frameworks/transformers/notes.h"

#include "estimator/frameworks/pieces/huggingface/expert_kernels.h"
#include "estimator/frameworks/pieces/huggingface/mixers/notes.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/objectives/rules.h"
#include "estimator/frameworks/pieces/huggingface/shared.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"

namespace shardplan::transformers {
namespace {

template <typename Add>
void add_of_program_optimizers(const Job& job, Add add) {
  switch (job.optimizer) {
    case OptimizerKind::kGaLore:
      add("steps that renew GaLore's projections are counted, which those of every update interval "
          "do; of their singular value decompositions cuSOLVER's workspace, about twice a matrix "
          "in fp32, and the time are not");
      break;
    case OptimizerKind::kApollo:
      add("steps that renew APOLLO's projections are counted, which those of every update interval "
          "do");
      break;
    case OptimizerKind::kBAdam:
      add("that BAdam empties PyTorch's cache behind every step is not played");
      break;
    case OptimizerKind::kMuonClip:
      add("the bound of queries' and keys' products is above MuonClip's limit, which scales their "
          "updates once more");
      break;
    default: break;
  }
}

}  // namespace

void add_assumptions(const Job& job, const Plan& plan, const PlanPieces&,
                     std::vector<Assumption>& assumptions) {
  const auto add = [&](const char* text) { assumptions.push_back({.text = text}); };
  add("sequences of a batch are equally long: padding makes transformers build a mask and repeat "
      "keys and values for every head");
  add(huggingface::attention_assumption(job));
  if (job.profile.objective != Objective::kNextToken) {
    assumptions.push_back({.text = huggingface::objective_assumption(job)});
  }
  if (job.profile.vision_tower != TowerUse::kAbsent) {
    add(huggingface::kTowerAssumption);
  }
  if (!job.name_rules.empty()) {
    add(huggingface::kNamesAssumption);
  }
  if (huggingface::has_recurrences(job.model)) {
    assumptions.push_back({.text = huggingface::recurrence_assumption(job)});
  }
  if (huggingface::class_of(job.model).idle_predictions > 0) {
    add("modules of multi-token prediction are loaded beside the layers and never run: their "
        "weights and adapters lie there without gradients and moments");
  }
  if (job.adapters.is_on(LinearLayer::kMixerOutput) && job.adapters.rank > 0 &&
      huggingface::refuses_adapted_outputs(job.model)) {
    add("no adapter is on out_proj of state spaces: peft refuses one there, and so a run that asks "
        "for all linear layers");
  }
  if (job.quantized.kind == Quantization::kInt8) {
    add("LLM.int8's products are those of bf16 in time, without columns of outliers: inputs beyond "
        "its threshold of 6 take tensors of their own, whose number the data decides");
  }
  if (plan.offload.optimizer > 0 && job.profile.host_threads == 1) {
    add("the optimizer on the host has one thread a rank, which torchrun and accelerate set where "
        "OMP_NUM_THREADS is not set; --set host_threads=N counts N, up to the rank's share of the "
        "host's memory rate");
  }
  add_of_program_optimizers(job, add);
  if (job.profile.fsdp_adapters_alone && job.adapters.rank > 0 && plan.zero > 0) {
    add("the hooks around each matrix of an adapter take the host no time, which was not measured");
  }
  if (job.profile.loop == TrainerLoop::kScript) {
    add("what a script of PyTorch does around forward, backward and step is not counted");
  }
  if (job.profile.fake_quantization != FakeQuantization::kNone) {
    add("the time of rounding weights and inputs is not counted: some twenty passes over the "
        "weights "
        "of a layer, twice a microbatch");
  }
  if (plan.cp > 1) {
    add("sequences divided over ranks were read of their sources, not measured");
  }
  if (plan.cp > 1 && plan.cp_method != CpMethod::kA2a) {
    add("batches have an attention mask; without one transformers takes a ring's positions for "
        "packed sequences, and makes a mask of (s / c)^2 bytes that no layer reads");
  }
  if (plan.ep > 1) {
    add("experts are as likely as each other, so that a rank receives what it has a share of; the "
        "time of rows whose experts are other ranks', which axolotl multiplies by the first "
        "expert's, is not counted");
  }
  if (plan.tp > 1) {
    add("layers divided over ranks were read of their sources, not measured");
  }
  if (plan.offload.activations) {
    add("saved tensors on the host were read of their sources; the time of their copies is that of "
        "a layer of Llama's, at the rate of page-locked memory");
  }
  if (job.profile.ffn_tiles > 0) {
    add("an FFN by tiles takes as long as one of all tokens, and its forward pass once more");
  }
  if (plan.zero > 0 && job.profile.fsdp_version == 1) {
    add("FSDP1's hooks take the host as long as FSDP2's, and use_orig_params is true");
  }
  if (const char* const text = huggingface::expert_kernels_assumption(job)) {
    add(text);
  }
  if (job.adapters.rank > 0 && job.model.has_moe_layers()) {
    add(huggingface::expert_adapters(job).are_none()
            ? "adapters are on linear layers, which the experts' weights are not"
        : job.profile.expert_kernels == ExpertKernels::kScatterMoe
            ? "adapters are on the experts' weights, too, beside which ScatterMoE runs them"
            : "adapters are on the experts' weights, too, each of which peft makes once more in "
              "every layer");
  }
  if (job.adapters.dropout > 0 || job.profile.weights_dtype == DType::kFp32) {
    add("the host's time is that of layers without dropout and autocast: it decides only where "
        "kernels are short");
  }
}

std::vector<std::string> not_counted(const FrameworkProfile&) {
  return {"evaluation", "checkpoint save and load", "loading on the host",
          "other processes on the GPU"};
}

}  // namespace shardplan::transformers
