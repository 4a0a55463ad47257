#include "data/arguments/trainer_experts.h"

#include <string>

namespace shardplan {

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
