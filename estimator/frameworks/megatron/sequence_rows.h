// What a rank of Megatron-LM holds in the size of a microbatch besides activations: buffers that
// stay, and what the loop of the pipeline schedule holds (core/pipeline_parallel/schedules.py).
#pragma once

#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/state_row.h"

namespace shardplan {

SequenceRows megatron_sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends);

}  // namespace shardplan
