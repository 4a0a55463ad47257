// The frameworks, one row each: the only place that names them all.
#include <array>
#include <string>

#include "estimator/frameworks/deepspeed/choices.h"
#include "estimator/frameworks/deepspeed/host_memory.h"
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
#include "estimator/frameworks/megatron/choices.h"
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
#include "estimator/frameworks/nanotron/choices.h"
#include "estimator/frameworks/nanotron/kernels.h"
#include "estimator/frameworks/nanotron/layout.h"
#include "estimator/frameworks/nanotron/notes.h"
#include "estimator/frameworks/nanotron/outside.h"
#include "estimator/frameworks/nanotron/rules.h"
#include "estimator/frameworks/nanotron/start_up.h"
#include "estimator/frameworks/nanotron/state.h"
#include "estimator/frameworks/nanotron/update.h"
#include "estimator/frameworks/native/blocks.h"
#include "estimator/frameworks/native/choices.h"
#include "estimator/frameworks/native/kernels.h"
#include "estimator/frameworks/native/layout.h"
#include "estimator/frameworks/native/notes.h"
#include "estimator/frameworks/native/outside.h"
#include "estimator/frameworks/native/rules.h"
#include "estimator/frameworks/native/state.h"
#include "estimator/frameworks/native/update.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/frameworks/pieces/shared_choices.h"
#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/choices.h"
#include "estimator/frameworks/torchtitan/kernels.h"
#include "estimator/frameworks/torchtitan/layout.h"
#include "estimator/frameworks/torchtitan/notes.h"
#include "estimator/frameworks/torchtitan/outside.h"
#include "estimator/frameworks/torchtitan/rules.h"
#include "estimator/frameworks/torchtitan/seen_by_time.h"
#include "estimator/frameworks/torchtitan/state.h"
#include "estimator/frameworks/torchtitan/timeline.h"
#include "estimator/frameworks/torchtitan/update.h"
#include "estimator/frameworks/transformers/host_memory.h"
#include "estimator/frameworks/transformers/kernels.h"
#include "estimator/frameworks/transformers/notes.h"
#include "estimator/frameworks/transformers/outside.h"
#include "estimator/frameworks/transformers/rules.h"
#include "estimator/frameworks/transformers/seen_by_time.h"
#include "estimator/frameworks/transformers/state.h"
#include "estimator/frameworks/transformers/timeline.h"
#include "estimator/frameworks/transformers/update.h"

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
  return nanotron::start_up(job, plan, stage, tensors);
}

// The paper's formula. Time, and what the formula leaves out, are Megatron-LM's, on which the paper
// measured.
constexpr Framework kFujii2024 = {.rules = fujii2024::validity_rules,
                                  .choices = {.counted_ends = ends_accounted_for},
                                  .block_rows = megatron::block_rows,
                                  .state = megatron::state_of_stage,
                                  .sequence_rows = megatron::sequence_rows,
                                  .kernels = megatron::kPaperKernels,
                                  .update = megatron::kPaperUpdate,
                                  .add_outside = megatron::add_outside,
                                  .formula = fujii2024::estimate_by_formula};

// Without an interleaved schedule either layer spec sends between its passes (core_v0.16.1
// training/arguments.py, validate_args).
constexpr Framework kMegatron = {
    .rules = megatron::validity_rules,
    .layout = megatron::kLayout,
    .choices = megatron::kChoices,
    .block_rows = megatron::block_rows,
    .seen_by_block = megatron::seen_by_block,
    .gathers_by_unit = megatron::is_megatron_fsdp,
    .chunk_buffers = megatron::fsdp_buffers,
    .add_buffer_rows = megatron::add_fsdp_rows,
    .contiguous_buffers = megatron::buffers,
    .state = megatron::state_of_stage,
    .sequence_rows = megatron::sequence_rows,
    .seen_by_sequences = megatron::seen_by_sequences,
    .built = megatron::built_stage,
    .made_once_bytes = megatron::dummy_gradient_bytes,
    .tells_shards = is_zero_1,
    .kernels = megatron::kKernels,
    .update = megatron::kUpdate,
    .sends_between_passes = true,
    .divides_sends = [](const FrameworkProfile& profile) { return profile.scatter_gather_sends; },
    .microbatches_seen_by_time = megatron::microbatches_seen_by_time,
    .sharding_seen_by_time = megatron::sharding_seen_by_time,
    .holds_whole_weights = true,
    .most_zero_unasked = 1,  // 2 and 3 are Megatron-FSDP: another implementation
    .add_outside = megatron::add_outside,
    .seen_by_outside = megatron::seen_by_outside,
    .overlaps = megatron::overlaps_of,
    .add_assumptions = megatron::add_assumptions,
    .not_counted = megatron::not_counted};

constexpr Framework kMegatronLocal = {.rules = megatron::local_validity_rules,
                                      .layout = megatron::kLocalLayout,
                                      .choices = megatron::kLocalChoices,
                                      .block_rows = megatron::local_rows,
                                      .seen_by_block = megatron::seen_by_block,
                                      .contiguous_buffers = megatron::buffers,
                                      .state = megatron::state_of_stage,
                                      .sequence_rows = megatron::sequence_rows,
                                      .seen_by_sequences = megatron::seen_by_sequences,
                                      .built = megatron::built_stage,
                                      .tells_shards = is_zero_1,
                                      .kernels = megatron::kLocalKernels,
                                      .update = megatron::kLocalUpdate,
                                      .sends_between_passes = true,
                                      .holds_whole_weights = true,
                                      .add_outside = megatron::add_outside,
                                      .seen_by_outside = megatron::seen_by_outside,
                                      .overlaps = megatron::overlaps_of,
                                      .add_assumptions = megatron::add_assumptions,
                                      .not_counted = megatron::not_counted};

constexpr Framework kNative = {.rules = native::validity_rules,
                               .layout = native::kLayout,
                               .choices = native::kChoices,
                               .block_rows = native::block_rows,
                               .seen_by_block = native::seen_by_block,
                               .names_rows_by_tensor = true,
                               .writes_next_input = true,
                               .last_replayed = Step::kForwardActivation,
                               .state = state_of<native::state_rows>,
                               .sequence_rows = native::sequence_rows,
                               .kernels = native::kKernels,
                               .update = native::kUpdate,
                               .set_fastest = native::set_fastest,
                               .add_outside = native::add_outside,
                               .seen_by_outside = native::seen_by_outside,
                               .not_counted = native::not_counted};

constexpr Framework kTorchtitan = {
    .rules = torchtitan::validity_rules,
    .layout = torchtitan::kLayout,
    .choices = torchtitan::kChoices,
    .block_rows = torchtitan::block_rows,
    .has_own_block = torchtitan::has_own_block,
    .state = torchtitan::state_of_stage,
    .sequence_rows = torchtitan::sequence_rows,
    .timeline = [](const Job& job, const Plan& plan, const StagePieces& pieces,
                   std::int64_t /*rank*/) { return torchtitan::timeline(job, plan, pieces); },
    .most_events = 150'000,  // of every tensor
    .kernels = torchtitan::kKernels,
    .update = torchtitan::kUpdate,
    .microbatches_seen_by_time = torchtitan::microbatches_seen_by_time,
    .sharding_seen_by_time = torchtitan::sharding_seen_by_time,
    .gains_by_replicas = true,
    .add_outside = torchtitan::add_outside,
    .add_assumptions = torchtitan::add_assumptions,
    .not_counted = torchtitan::not_counted};

// Stages wait for what they receive (parallel/pipeline_parallel/p2p.py: send_tensors and
// recv_tensors wait).
constexpr Framework kNanotron = {.rules = nanotron::validity_rules,
                                 .layout = nanotron::kLayout,
                                 .choices = nanotron::kChoices,
                                 .block_rows = nanotron::block_rows,
                                 .has_own_block = nanotron::has_own_block,
                                 .state = state_of<nanotron::state_rows>,
                                 .sequence_rows = nanotron::sequence_rows,
                                 .built = nanotron_built,
                                 .kernels = nanotron::kKernels,
                                 .update = nanotron::kUpdate,
                                 .waits_for_receives = true,
                                 .hand_over_s = nanotron::hand_over_s,
                                 .set_fastest = nanotron::set_fastest,
                                 .add_outside = nanotron::add_outside,
                                 .not_counted = nanotron::not_counted};

constexpr Framework kDeepspeed = {
    .rules = deepspeed::validity_rules,
    .leaves_out_prediction = true,
    .layout = {.model_parts = huggingface::kModelParts},
    .state =
        [](const Job& job, const Plan& plan, const StageLayout&, const StageTensors&,
           std::optional<std::int64_t> data_rank) {
          return deepspeed::state_of_stage(job, plan, data_rank);
        },
    .timeline = [](const Job& job, const Plan& plan, const StagePieces&,
                   std::int64_t rank) { return deepspeed::timeline(job, plan, rank); },
    .tells_shards = is_below_zero_3,
    .kernels = deepspeed::kKernels,
    .update = deepspeed::kUpdate,
    .set_fastest = deepspeed::set_fastest,
    .sharding_seen_by_time = deepspeed::sharding_seen_by_time,
    .offload_adds_buffers = true,
    .add_outside = deepspeed::add_outside,
    .knows_data_ranks = is_below_zero_3,
    .add_assumptions = deepspeed::add_assumptions,
    .host_bytes = deepspeed::host_bytes,
    .not_counted = deepspeed::not_counted};

// Modules of multi-token prediction stand in none of its models' classes (transformers 5.17
// modeling_deepseek_v3.py, modeling_glm4_moe.py, modeling_qwen3_5.py: _keys_to_ignore_on_load_
// unexpected), which DeepSpeed's engine trains, too.
constexpr Framework kTransformers = {
    .rules = transformers::validity_rules,
    .leaves_out_prediction = true,
    .layout = {.model_parts = huggingface::kModelParts},
    .state = [](const Job& job, const Plan& plan, const StageLayout&, const StageTensors&,
                std::optional<std::int64_t>) { return transformers::state_of_stage(job, plan); },
    .timeline = [](const Job& job, const Plan& plan, const StagePieces&,
                   std::int64_t /*rank*/) { return transformers::timeline(job, plan); },
    .kernels = transformers::kKernels,
    .update = transformers::kUpdate,
    .microbatches_seen_by_time = transformers::microbatches_seen_by_time,
    .sharding_seen_by_time = transformers::sharding_seen_by_time,
    .offload_adds_buffers = true,
    .add_outside = transformers::add_outside,
    .seen_by_outside = transformers::seen_by_outside,
    .add_assumptions = transformers::add_assumptions,
    .host_bytes = transformers::host_bytes,
    .not_counted = transformers::not_counted};

}  // namespace

constinit const std::array<Framework, kMemoryModels.size()> kFrameworks = {
    kMegatron, kMegatronLocal, kNative,       kTorchtitan,
    kNanotron, kDeepspeed,     kTransformers, kFujii2024};

std::string leave_out_modules(Job& job) {
  const std::int64_t modules = job.model.num_mtp_layers;
  const Framework& framework = framework_of(job.profile);
  if (modules == 0 || !framework.leaves_out_prediction) {
    return "";
  }
  const bool loads_them = framework.layout.model_parts == huggingface::kModelParts &&
                          huggingface::class_of(job.model).idle_predictions > 0;
  job.model.num_mtp_layers = 0;
  return "model: found " + std::to_string(modules) + " modules of multi-token prediction; " +
         job.profile.name +
         (loads_them ? " loads them by the model's own code, which never runs them"
                     : " trains without, as its classes of models have none");
}

void set_framework(FrameworkProfile& profile, MemoryModel memory_model) {
  profile.memory_model = memory_model;
  profile.layout = framework_of(profile).layout;
  profile.choices = framework_of(profile).choices;
  profile.host = nullptr;
}

}  // namespace shardplan
