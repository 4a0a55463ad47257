// How a Trainer's run keeps its frozen weights: as the checkpoint has them, or quantized as they
// are loaded.
#pragma once

#include "data/arguments/trainer.h"

namespace shardplan {

// Quantized weights of the job; refuses what is not bitsandbytes', and checkpoints that
// transformers loads and does not train. Weights that become bf16 as they are loaded are noted.
void read_quantized(const TrainerFile& trainer, RunReading& run);

// Whether 4-bit weights are kept in tensors of floats, which FSDP2 divides, not of bytes.
bool stores_floats(const TrainerFile& trainer);

// The type that 4-bit weights are unpacked to, which LLaMA-Factory's version 1 chooses itself.
void read_quant_compute(const TrainerFile& trainer, bool is_sharded, RunReading& run,
                        const Library& library);

// Weights that are trained to be quantized: the profile's fake_quantization.
void read_fake_quantization(const TrainerFile& trainer, RunReading& run, const Library& library);

}  // namespace shardplan
