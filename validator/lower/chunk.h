// One action of the pipeline schedule.
#pragma once

#include <cstdint>

#include "validator/lower/lowering_state.h"

namespace shardplan {

void chunk_forward(Lowering& l, std::int64_t chunk, std::int64_t microbatch);
void chunk_backward(Lowering& l, std::int64_t chunk, std::int64_t microbatch);
void chunk_weights(Lowering& l, std::int64_t chunk, std::int64_t microbatch);

}  // namespace shardplan
