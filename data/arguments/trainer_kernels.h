// Which kernels of attention, layers and loss a Trainer's run asks for.
#pragma once

#include <string>

#include "data/arguments/trainer.h"

namespace shardplan {

// Refuses kernels of attention that keep their scores, and plugins that are not described.
void read_kernels(const TrainerFile& trainer, RunReading& run);

// FlashAttention by its own package, not by PyTorch's choice.
bool uses_flash_attention(const RunArguments& arguments);

// axolotl's kernels of adapters, of norms of heads and rotary embedding.
void read_adapter_kernels(const TrainerFile& trainer, RunReading& run, const Library& library);

// Of a class that cannot do without a package: axolotl 067b021 model_support/kimi_linear/
// modeling_kimi.py, which imports fla.
void read_mixers(const TrainerFile& trainer, RunReading& run, const Library& library);
// Whether tensor cores round what products of fp32 read. Called behind take_profile.
void read_products(const TrainerFile& trainer, RunReading& run, const Library& library);
// The profile's liger_kernel.
void read_liger(const TrainerFile& trainer, RunReading& run, const Library& library);

// The loss: a value of HeadLoss as the profile has it, "" for one that is none of them, and what
// was taken without the run's saying so.
struct LossWords {
  std::string kind = "stock";
  std::string because = {};
};
LossWords loss_of(const TrainerFile& trainer);

}  // namespace shardplan
