// State of one pipeline rank: all that a framework holds there besides activations.
#pragma once

#include <cstdint>
#include <optional>

#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_state.h"
#include "estimator/ledger/stage_tensors.h"

namespace shardplan {

// Parameters of the stage, in contiguous buffers cut as the framework does.
StageTensors stage_tensors(const Job& job, const Plan& plan, const StageLayout& stage);

// Everything that does not depend on the sequence or the micro-batch; all of DeepSpeed, of the
// fullest data-parallel rank where none is given.
StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage,
                       std::optional<std::int64_t> data_rank = std::nullopt);
// The same of tensors that are known: stage_tensors of the stage.
StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage,
                       const StageTensors& tensors,
                       std::optional<std::int64_t> data_rank = std::nullopt);

// What has the size of a microbatch.
SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends);
SeenBySequences seen_by_sequences(const Job& job, const Plan& plan, std::int64_t num_microbatches);

}  // namespace shardplan
