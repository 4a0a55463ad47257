// What a rank of Megatron-LM holds in the size of a microbatch besides activations: buffers that
// stay, and what the loop of the pipeline schedule holds (core/pipeline_parallel/schedules.py).
#pragma once

#include <cstdint>

#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/state_row.h"

namespace shardplan::megatron {

SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends);
// What they look at: of the pipeline whether there are several stages, several chunks on each, and
// how many microbatches before the last one leave gradients of the output layer for later; of
// experts nothing, but for a dispatcher that gathers the tokens of all; nor how context parallelism
// goes.
SeenBySequences seen_by_sequences(const Job& job, const Plan& plan, std::int64_t num_microbatches);

}  // namespace shardplan::megatron
