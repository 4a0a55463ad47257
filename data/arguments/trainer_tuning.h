// What of a model a Trainer's run trains, and how it keeps the weights: adapters, quantization and
// types.
#pragma once

#include "data/arguments/trainer.h"
#include "estimator/plan/dtype.h"

namespace shardplan {

// Adapters and quantized weights of the job; refuses what is neither LoRA nor bitsandbytes'.
void read_tuning(const TrainerFile& trainer, RunReading& run);

// How the model is tuned, in the program's own word: "full", "lora" or another.
std::string tuner_word(const TrainerFile& trainer);

// Types without DeepSpeed, which has its own.
struct TrainerTypes {
  Precision precision = Precision::kFp32;  // of products
  bool autocast = false;
  DType weights = DType::kFp32;
  bool wide_ends = false;  // axolotl: norms, embedding and head in fp32
  std::string because;     // what was taken without the run's saying so
};
TrainerTypes types_of(const TrainerFile& trainer, bool is_sharded);

}  // namespace shardplan
