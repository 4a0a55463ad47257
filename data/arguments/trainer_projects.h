// What transformers' Trainer, and the programs around it, take where a run is silent.
#pragma once

#include <cstdint>
#include <string_view>

#include "data/arguments/run_settings.h"

namespace shardplan {

struct ProjectDefaults {
  TrainerProject project = TrainerProject::kTransformers;
  std::string_view name;             // as messages have it
  std::int64_t micro_batch = 8;      // sequences of a rank
  std::string_view length_name;      // what says the length of sequences
  std::int64_t length = 0;           // tokens; 0: none
  bool length_is_positions = false;  // as many as the model has
  bool is_bf16 = false;              // mixed precision
  bool recomputes = false;           // gradient checkpointing
  bool reentrant = false;            // by torch's reentrant way
  std::int64_t lora_rank = 8;        // peft's own
  double lora_dropout = 0;
  bool targets_all = false;       // adapters on all linear layers, else peft's q_proj and v_proj
  bool double_quantizes = false;  // scales of 4-bit weights
  bool stores_floats = false;     // 4-bit weights in tensors of bf16
  std::int64_t fsdp_version = 2;  // of its own settings; accelerate's file says 1 unless told
  std::string_view fsdp_upcast = "trained";  // of the accelerate it is installed with
  std::string_view fsdp_ends = "tail_with_head";
};

const ProjectDefaults& defaults_of(TrainerProject project);

}  // namespace shardplan
