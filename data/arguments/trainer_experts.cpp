#include "data/arguments/trainer_experts.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace shardplan {

// peft 0.21 utils/transformers_weight_conversion.py: names of an FFN's layers stand for the experts
// of these, every one of which gets adapters and, in every layer, its weights once more.
void refuse_expert_targets(const char* setting, RunReading& run) {
  constexpr std::array<std::string_view, 3> kConverted = {"mixtral", "olmoe", "qwen3_moe"};
  using enum LinearLayer;
  const Adapters& adapters = run.job.adapters;
  const bool names_ffn = adapters.is_on(kGate) || adapters.is_on(kUp) || adapters.is_on(kDown);
  if (names_ffn && std::ranges::find(kConverted, run.job.model.family) != kConverted.end()) {
    refuse(run, std::string(setting) + " of an FFN: adapters on every expert of " +
                    run.job.model.family +
                    "; those on linear layers are described: all-linear, or attention's names");
  }
}

void read_packed_experts(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const char* const setting = "quantize_moe_experts";
  if (!is_on(trainer.arguments, setting) || run.job.model.moe.num_experts == 0 ||
      run.job.quantized.kind == Quantization::kNone) {
    return;
  }
  if (takes_word(run, "quantizes_experts", "true", library)) {
    want(run, "quantizes_experts", "true", library);
  } else {
    refuse(run, std::string(setting) + " true: under transformers' Trainer alone it is described");
  }
}

}  // namespace shardplan
