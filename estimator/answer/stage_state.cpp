#include "estimator/answer/stage_state.h"

#include "estimator/frameworks/framework.h"

namespace shardplan {

StageTensors stage_tensors(const Job& job, const Plan& plan, const StageLayout& stage) {
  const Framework& framework = framework_of(job.profile);
  return stage_tensors(job, plan, stage,
                       framework.contiguous_buffers != nullptr
                           ? framework.contiguous_buffers(job, plan)
                           : ContiguousBuffers{});
}

StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage,
                       std::optional<std::int64_t> data_rank) {
  return stage_state(job, plan, stage, stage_tensors(job, plan, stage), data_rank);
}

StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage,
                       const StageTensors& tensors, std::optional<std::int64_t> data_rank) {
  StageState state = framework_of(job.profile).state(job, plan, stage, tensors, data_rank);
  state.parameters = tensors.dense + tensors.expert;
  for (const StateRow& row : state.rows) { state.bytes.add(row); }
  return state;
}

SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends) {
  const Framework& framework = framework_of(job.profile);
  return framework.sequence_rows != nullptr ? framework.sequence_rows(job, plan, ends)
                                            : SequenceRows{};
}

SeenBySequences seen_by_sequences(const Job& job, const Plan& plan, std::int64_t num_microbatches) {
  const Framework& framework = framework_of(job.profile);
  if (framework.seen_by_sequences != nullptr) {
    return framework.seen_by_sequences(job, plan, num_microbatches);
  }
  return {.pipeline = {2 * plan.vpp + (plan.pp > 1 ? 1 : 0),
                       std::ssize(kSchedules) * num_microbatches +
                           static_cast<std::int64_t>(plan.schedule)}};
}

}  // namespace shardplan
