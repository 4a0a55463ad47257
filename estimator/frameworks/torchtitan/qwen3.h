// What the norms and rotations of Qwen 3's heads share with compiled layers and with GPT-OSS.
#pragma once

#include "estimator/frameworks/torchtitan/layer.h"

namespace shardplan::torchtitan {

// Cosines and sines as a graph of Qwen 3's attention saves them: casts, or the block's, of which a
// ring picks those of its positions; for several samples that is part of the kernel.
void save_rotary(TitanTape& tape, const TitanSizes& sizes, LayerTensors& layer);

// x * cos + rotate_half(x) * sin, of x in so many bytes.
TapeTensor turn_halves(TitanTape& tape, std::int64_t bytes);

}  // namespace shardplan::torchtitan
