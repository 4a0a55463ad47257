// The frameworks, one row each: the only place that names them all.
#include <array>

#include "estimator/frameworks/deepspeed/kernels.h"
#include "estimator/frameworks/deepspeed/notes.h"
#include "estimator/frameworks/deepspeed/outside.h"
#include "estimator/frameworks/deepspeed/rules.h"
#include "estimator/frameworks/deepspeed/seen_by_time.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/frameworks/deepspeed/timeline.h"
#include "estimator/frameworks/deepspeed/update.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/fujii2024/formula.h"
#include "estimator/frameworks/fujii2024/rules.h"
#include "estimator/frameworks/megatron/allocator_tails.h"
#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/dummy_gradients.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/fsdp_rows.h"
#include "estimator/frameworks/megatron/kernels.h"
#include "estimator/frameworks/megatron/layout.h"
#include "estimator/frameworks/megatron/local_blocks.h"
#include "estimator/frameworks/megatron/local_rules.h"
#include "estimator/frameworks/megatron/notes.h"
#include "estimator/frameworks/megatron/outside.h"
#include "estimator/frameworks/megatron/overlap_rules.h"
#include "estimator/frameworks/megatron/rules.h"
#include "estimator/frameworks/megatron/seen_by_time.h"
#include "estimator/frameworks/megatron/sequence_rows.h"
#include "estimator/frameworks/megatron/state.h"
#include "estimator/frameworks/megatron/update.h"
#include "estimator/frameworks/megatron/weights.h"
#include "estimator/frameworks/nanotron/blocks.h"
#include "estimator/frameworks/nanotron/kernels.h"
#include "estimator/frameworks/nanotron/layout.h"
#include "estimator/frameworks/nanotron/notes.h"
#include "estimator/frameworks/nanotron/outside.h"
#include "estimator/frameworks/nanotron/rules.h"
#include "estimator/frameworks/nanotron/start_up.h"
#include "estimator/frameworks/nanotron/state.h"
#include "estimator/frameworks/nanotron/update.h"
#include "estimator/frameworks/native/blocks.h"
#include "estimator/frameworks/native/kernels.h"
#include "estimator/frameworks/native/layout.h"
#include "estimator/frameworks/native/notes.h"
#include "estimator/frameworks/native/outside.h"
#include "estimator/frameworks/native/rules.h"
#include "estimator/frameworks/native/state.h"
#include "estimator/frameworks/native/update.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/kernels.h"
#include "estimator/frameworks/torchtitan/layout.h"
#include "estimator/frameworks/torchtitan/notes.h"
#include "estimator/frameworks/torchtitan/outside.h"
#include "estimator/frameworks/torchtitan/rules.h"
#include "estimator/frameworks/torchtitan/seen_by_time.h"
#include "estimator/frameworks/torchtitan/state.h"
#include "estimator/frameworks/torchtitan/timeline.h"
#include "estimator/frameworks/torchtitan/update.h"

namespace shardplan {
namespace {

// The state of a framework whose ranks hold rows alone, all data-parallel ones the same.
template <auto rows>
StageState state_of(const Job& job, const Plan& plan, const StageLayout& stage,
                    const StageTensors& tensors, std::optional<std::int64_t> /*data_rank*/) {
  StageState state;
  state.rows = rows(job, plan, stage, tensors);
  return state;
}

constexpr bool is_zero_1(const Plan& plan) {
  return plan.zero == 1;
}
constexpr bool is_below_zero_3(const Plan& plan) {
  return plan.zero < 3;
}

BuiltStage nanotron_built(const Job& job, const Plan& plan, const StageLayout& stage,
                          const StageTensors& tensors, std::int64_t /*shard*/) {
  return nanotron_start_up(job, plan, stage, tensors);
}

// The paper's formula. Time, and what the formula leaves out, are Megatron-LM's, on which the paper
// measured.
constexpr Framework kFujii2024 = {.rules = fujii2024_validity_rules,
                                  .block_rows = megatron_rows,
                                  .state = megatron_state,
                                  .sequence_rows = megatron_sequence_rows,
                                  .kernels = kMegatronPaperKernels,
                                  .update = kMegatronPaperUpdate,
                                  .add_outside = add_megatron_outside,
                                  .formula = estimate_fujii2024};

// Without an interleaved schedule either layer spec sends between its passes (core_v0.16.1
// training/arguments.py, validate_args).
constexpr Framework kMegatron = {
    .rules = megatron_validity_rules,
    .layout = kMegatronLayout,
    .block_rows = megatron_rows,
    .seen_by_block = seen_by_megatron_block,
    .gathers_by_unit = is_megatron_fsdp,
    .chunk_buffers = fsdp_buffers,
    .add_buffer_rows = add_fsdp_rows,
    .contiguous_buffers = megatron_buffers,
    .state = megatron_state,
    .sequence_rows = megatron_sequence_rows,
    .seen_by_sequences = seen_by_megatron_sequences,
    .built = megatron_built,
    .made_once_bytes = dummy_gradient_bytes,
    .tells_shards = is_zero_1,
    .kernels = kMegatronKernels,
    .update = kMegatronUpdate,
    .sends_between_passes = true,
    .microbatches_seen_by_time = megatron_microbatches_seen_by_time,
    .sharding_seen_by_time = megatron_sharding_seen_by_time,
    .holds_whole_weights = true,
    .most_zero_unasked = 1,  // 2 and 3 are Megatron-FSDP: another implementation
    .add_outside = add_megatron_outside,
    .seen_by_outside = outside_seen_by_megatron,
    .overlaps = overlaps_of,
    .add_assumptions = add_megatron_assumptions,
    .not_counted = megatron_not_counted};

constexpr Framework kMegatronLocal = {.rules = megatron_local_validity_rules,
                                      .layout = kMegatronLocalLayout,
                                      .block_rows = megatron_local_rows,
                                      .seen_by_block = seen_by_megatron_block,
                                      .contiguous_buffers = megatron_buffers,
                                      .state = megatron_state,
                                      .sequence_rows = megatron_sequence_rows,
                                      .seen_by_sequences = seen_by_megatron_sequences,
                                      .built = megatron_built,
                                      .tells_shards = is_zero_1,
                                      .kernels = kMegatronLocalKernels,
                                      .update = kMegatronLocalUpdate,
                                      .sends_between_passes = true,
                                      .holds_whole_weights = true,
                                      .add_outside = add_megatron_outside,
                                      .seen_by_outside = outside_seen_by_megatron,
                                      .overlaps = overlaps_of,
                                      .add_assumptions = add_megatron_assumptions,
                                      .not_counted = megatron_not_counted};

constexpr Framework kNative = {.rules = native_validity_rules,
                               .layout = kNativeLayout,
                               .block_rows = native_rows,
                               .seen_by_block = seen_by_native_block,
                               .names_rows_by_tensor = true,
                               .writes_next_input = true,
                               .last_replayed = Step::kForwardActivation,
                               .state = state_of<native_state_rows>,
                               .sequence_rows = native_sequence_rows,
                               .kernels = kNativeKernels,
                               .update = kNativeUpdate,
                               .add_outside = add_native_outside,
                               .seen_by_outside = outside_seen_by_native,
                               .not_counted = native_not_counted};

constexpr Framework kTorchtitan = {
    .rules = torchtitan_validity_rules,
    .layout = kTorchtitanLayout,
    .block_rows = torchtitan_rows,
    .has_own_block = has_torchtitan_block,
    .state = torchtitan_state,
    .sequence_rows = torchtitan_sequence_rows,
    .timeline = [](const Job& job, const Plan& plan, const StagePieces& pieces,
                   std::int64_t /*rank*/) { return torchtitan_timeline(job, plan, pieces); },
    .most_events = 150'000,  // of every tensor
    .kernels = kTorchtitanKernels,
    .update = kTorchtitanUpdate,
    .microbatches_seen_by_time = torchtitan_microbatches_seen_by_time,
    .sharding_seen_by_time = torchtitan_sharding_seen_by_time,
    .gains_by_replicas = true,
    .add_outside = add_torchtitan_outside,
    .add_assumptions = add_torchtitan_assumptions,
    .not_counted = torchtitan_not_counted};

// Stages wait for what they receive (parallel/pipeline_parallel/p2p.py: send_tensors and
// recv_tensors wait).
constexpr Framework kNanotron = {.rules = nanotron_validity_rules,
                                 .layout = kNanotronLayout,
                                 .block_rows = nanotron_rows,
                                 .has_own_block = has_nanotron_block,
                                 .state = state_of<nanotron_state_rows>,
                                 .sequence_rows = nanotron_sequence_rows,
                                 .built = nanotron_built,
                                 .kernels = kNanotronKernels,
                                 .update = kNanotronUpdate,
                                 .waits_for_receives = true,
                                 .add_outside = add_nanotron_outside,
                                 .not_counted = nanotron_not_counted};

constexpr Framework kDeepspeed = {
    .rules = deepspeed_validity_rules,
    .state =
        [](const Job& job, const Plan& plan, const StageLayout&, const StageTensors&,
           std::optional<std::int64_t> data_rank) { return deepspeed_state(job, plan, data_rank); },
    .timeline = [](const Job& job, const Plan& plan, const StagePieces&,
                   std::int64_t rank) { return deepspeed_timeline(job, plan, rank); },
    .tells_shards = is_below_zero_3,
    .kernels = kDeepspeedKernels,
    .update = kDeepspeedUpdate,
    .sharding_seen_by_time = deepspeed_sharding_seen_by_time,
    .offload_adds_buffers = true,
    .add_outside = add_deepspeed_outside,
    .knows_data_ranks = is_below_zero_3,
    .add_assumptions = add_deepspeed_assumptions,
    .not_counted = deepspeed_not_counted};

// By MemoryModel.
constexpr std::array kFrameworks = {kMegatron, kMegatronLocal, kNative,   kTorchtitan,
                                    kNanotron, kDeepspeed,     kFujii2024};
static_assert(kFrameworks.size() == kMemoryModels.size());

}  // namespace

void set_framework(FrameworkProfile& profile, MemoryModel memory_model) {
  profile.memory_model = memory_model;
  profile.layout = framework_of(profile).layout;
}

const Framework& framework_of(const FrameworkProfile& profile) {
  return kFrameworks[static_cast<std::size_t>(profile.memory_model)];
}

}  // namespace shardplan
