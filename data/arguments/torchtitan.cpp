// A run of torchtitan v0.2.2: its configuration -> Job and Plan. Defaults as in
// torchtitan/config/job_config.py; layers over stages as in torchtitan/distributed/
// pipeline_parallel.py (pipeline_llm, generate_llm_fqn_per_model_part).
#include "data/arguments/torchtitan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "data/arguments/environment.h"
#include "data/arguments/torchtitan_models.h"
#include "data/arguments/torchtitan_names.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 20;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 27;

struct ScheduleName {
  std::string_view name;
  Schedule schedule;
  std::int64_t stages_per_rank;
};
// torch.distributed.pipelining.schedules, get_schedule_class: in any case of letters.
constexpr std::array<ScheduleName, 5> kScheduleNames = {{
    {.name = "1F1B", .schedule = Schedule::k1F1B, .stages_per_rank = 1},
    {.name = "GPipe", .schedule = Schedule::kGpipe, .stages_per_rank = 1},
    {.name = "Interleaved1F1B", .schedule = Schedule::kInterleaved1F1B, .stages_per_rank = 2},
    {.name = "InterleavedZeroBubble",
     .schedule = Schedule::kInterleavedZeroBubble,
     .stages_per_rank = 2},
    {.name = "ZBVZeroBubble", .schedule = Schedule::kZbv, .stages_per_rank = 2},
}};

// Embedding and head stand for a layer each; the first stages get one more where it does not
// divide.
void read_stages(const RunArguments& arguments, const char* head_name, std::int64_t num_layers,
                 Plan& plan) {
  const char* const embedding_name = "parallelism.pipeline_parallel_first_stage_less_layers";
  const std::int64_t embedding = arguments.integer_or(embedding_name, 1, 0, kMaxCount);
  const std::int64_t head = arguments.integer_or(head_name, 1, 0, kMaxCount);
  const std::int64_t slots = num_layers + embedding + head;
  const char* const size_name = "parallelism.pipeline_parallel_layers_per_stage";
  if (const auto layers = arguments.integer(size_name, 1, kMaxCount)) {
    const std::int64_t stages = (slots + *layers - 1) / *layers;
    if (stages % plan.pp != 0) {
      throw arguments.error(size_name, "found " + std::to_string(*layers) + ", which makes " +
                                           std::to_string(stages) +
                                           " stages, expected a multiple of pp " +
                                           std::to_string(plan.pp));
    }
    plan.vpp = stages / plan.pp;
  }
  const std::int64_t stages = plan.pp * plan.vpp;
  if (std::max(embedding, head) > slots / stages) {
    throw arguments.error(head_name, "found " + std::to_string(stages) + " stages for " +
                                         std::to_string(slots) +
                                         " layers with embedding and head, expected fewer");
  }
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    plan.layers_per_chunk.push_back(slots / stages + (stage < slots % stages ? 1 : 0));
  }
  plan.layers_per_chunk.front() -= embedding;
  plan.layers_per_chunk.back() -= head;
}

void read_pipeline(const RunArguments& arguments, RunReading& run) {
  Plan& plan = run.plan;
  if (plan.pp == 1) {
    return;
  }
  const char* const name = "parallelism.pipeline_parallel_schedule";
  const std::string word = arguments.text_or(name, "1F1B");
  const auto* const row = std::ranges::find_if(kScheduleNames, [&](const ScheduleName& each) {
    return in_lower_case(each.name) == in_lower_case(word);
  });
  if (row == kScheduleNames.end()) {
    refuse(run, std::string(name) + " " + word + ": its in-flight microbatches are not described");
    return;
  }
  plan.schedule = row->schedule;
  plan.vpp = row->stages_per_rank;
  read_stages(arguments, "parallelism.pipeline_parallel_last_stage_less_layers",
              run.job.model.num_layers(), plan);
}

// Whether the sizes multiply to the world, as ParallelDims._validate wants; in steps, since their
// product could overflow.
bool fills_world(const Plan& plan, std::int64_t world) {
  for (const std::int64_t size : {plan.tp, plan.pp, plan.cp, plan.dp}) {
    if (world % size != 0) {
      return false;
    }
    world /= size;
  }
  return world == 1;
}

constexpr const char* kShardName = "parallelism.data_parallel_shard_degree";

// distributed/parallel_dims.py: dp is what -1 leaves.
Plan sizes_of(const RunArguments& arguments, std::int64_t world) {
  Plan plan;
  plan.tp = arguments.integer_or("parallelism.tensor_parallel_degree", 1, 1, kMaxCount);
  plan.pp = arguments.integer_or("parallelism.pipeline_parallel_degree", 1, 1, kMaxCount);
  plan.cp = arguments.integer_or("parallelism.context_parallel_degree", 1, 1, kMaxCount);
  plan.ep = arguments.integer_or("parallelism.expert_parallel_degree", 1, 1, kMaxCount);
  plan.etp = arguments.integer_or("parallelism.expert_tensor_parallel_degree", 1, 1, kMaxCount);
  plan.dp_replicate =
      arguments.integer_or("parallelism.data_parallel_replicate_degree", 1, 1, kMaxCount);
  const std::int64_t shard = arguments.integer_or(kShardName, -1, -1, kMaxCount);
  if (shard == 0) {
    throw arguments.error(kShardName,
                          "found 0, expected -1 (what the other degrees leave) or 1 or "
                          "more");
  }
  // In steps: the product of the sizes could overflow.
  const std::int64_t left = world / plan.tp / plan.pp / plan.cp / plan.dp_replicate;
  plan.dp = (shard > 0 ? shard : std::max<std::int64_t>(1, left)) * plan.dp_replicate;
  return plan;
}

void read_sizes(const RunArguments& arguments, RunReading& run) {
  Plan& plan = run.plan;
  const std::int64_t world = run.job.cluster.world_size();
  plan = sizes_of(arguments, world);
  // Without ep every expert is divided over tp (models/llama4/infra/parallelize.py,
  // apply_moe_ep_tp).
  if (run.job.model.moe.num_experts > 0 && plan.ep == 1) {
    plan.etp = plan.tp;
  }
  // Replicas of one shard each are DDP's (models/llama3/infra/parallelize.py).
  const bool is_sharded = plan.dp / plan.dp_replicate * plan.cp > 1;
  plan.zero = is_sharded || (world > 1 && plan.dp_replicate == 1) ? 3 : 0;
  plan.sequence_parallel = plan.tp > 1;  // parallelize.py always shards the sequence
  const std::string rotate = arguments.word_or("parallelism.context_parallel_rotate_method",
                                               "allgather", {"allgather", "alltoall"});
  // Ring attention either way: its keys and values are gathered once, which is the ring of the
  // profile (torch/distributed/tensor/experimental/_attention.py, _AllGatherRotater), or handed on.
  plan.cp_method = CpMethod::kRing;
  if (plan.cp > 1 && rotate == "alltoall") {
    refuse(run,
           "parallelism.context_parallel_rotate_method alltoall: keys and values that are handed "
           "from rank to rank; allgather is described");
  }
}

void read_recompute(const RunArguments& arguments, RunReading& run) {
  Recompute& recompute = run.plan.recompute;
  const std::string mode = arguments.word_or("activation_checkpoint.mode", "selective",
                                             {"none", "selective", "full", "memory_budget"});
  if (mode == "memory_budget") {
    refuse(run, "activation_checkpoint.mode memory_budget: the compiler chooses what is kept");
  } else if (mode == "full") {
    recompute.granularity = RecomputeGranularity::kFull;
  } else if (mode == "selective") {
    recompute.granularity = RecomputeGranularity::kSelective;
    const std::string option = arguments.text_or("activation_checkpoint.selective_ac_option", "2");
    if (option == "op") {
      recompute.policy = "every_second_matmul";
    } else if (option == "2") {
      recompute.policy = "every_second_layer";
    } else {
      refuse(run,
             "activation_checkpoint.selective_ac_option " + option + ": op and 2 are described");
    }
  }
}

void read_options(const RunArguments& arguments, RunReading& run, const Library& library) {
  const bool compiles = arguments.word_or("compile.enable", "false", {"true", "false"}) == "true";
  const std::vector<std::string> parts = arguments.texts("compile.components");
  const auto has = [&](const char* part) {
    return parts.empty() || std::ranges::find(parts, part) != parts.end();
  };
  want(run, "compile", compiles && (has("model") || has("loss")) ? "true" : "false", library);
  // models/gpt_oss/infra/parallelize.py compiles no layer.
  const bool is_gpt_oss = run.job.model.family == "gpt_oss";
  want(run, "compile_layers", has("model") && !is_gpt_oss ? "true" : "false", library);
  if (run.job.model.is_mla()) {  // attn_type of those flavors
    want(run, "attention_backend", "flex", library);
  }
  want(run, "compile_loss", has("loss") ? "true" : "false", library);
  want(run, "reshard_after_forward",
       arguments.word_or("parallelism.fsdp_reshard_after_forward", "default",
                         {"default", "always", "never"}),
       library);
  const std::string optimizer =
      arguments.word_or("optimizer.implementation", "fused", {"fused", "foreach", "for-loop"});
  want(run, "fused_optimizer", optimizer == "fused" ? "true" : "false", library);
}

// train.py, "verify batch sizes": each accumulation step runs the whole pipeline schedule over
// `local` sequences. `own_dp`: data-parallel ranks of a run whose sizes are not changed.
void read_global_batch(const RunArguments& arguments, std::int64_t local, std::int64_t own_dp,
                       RunReading& run) {
  const char* const name = "training.global_batch_size";
  const std::int64_t one_pass = local * run.plan.dp;
  run.job.global_batch = arguments.integer_or(name, -1, -kMaxCount, kMaxCount * kMaxCount);
  run.batch_stated = run.job.global_batch >= 0 || run.plan.pp > 1;
  if (run.job.global_batch < 0) {
    run.job.global_batch = local * own_dp;
    return;
  }
  if (!fills_world(run.plan, run.job.cluster.world_size())) {
    return;  // why_invalid says so
  }
  if (run.job.global_batch == 0 || run.job.global_batch % one_pass != 0) {
    throw arguments.error(name, "found " + std::to_string(run.job.global_batch) +
                                    ", expected a multiple of training.local_batch_size " +
                                    std::to_string(local) + " times the data-parallel degree " +
                                    std::to_string(run.plan.dp));
  }
  const std::int64_t passes = run.job.global_batch / one_pass;
  if (run.plan.pp > 1 && passes > 1) {
    refuse(run, std::string(name) + " " + std::to_string(run.job.global_batch) + ": " +
                    std::to_string(passes) + " passes of the pipeline in a step; one, of " +
                    std::to_string(one_pass) + " sequences, is described");
  }
}

void read_training(const RunArguments& arguments, std::int64_t own_dp, RunReading& run) {
  Plan& plan = run.plan;
  const std::int64_t local = arguments.integer_or("training.local_batch_size", 8, 1, kMaxCount);
  plan.micro_batch = local;
  if (plan.pp > 1) {
    const char* const name = "parallelism.pipeline_parallel_microbatch_size";
    plan.micro_batch = arguments.integer_or(name, 1, 1, kMaxCount);
    if (local % plan.micro_batch != 0) {
      throw arguments.error(name, "found " + std::to_string(plan.micro_batch) +
                                      ", expected a divisor of training.local_batch_size " +
                                      std::to_string(local));
    }
  }
  run.job.sequence_length = arguments.integer_or("training.seq_len", 2048, 1, kMaxTokens);
  // seq_len_divisor of distributed/parallel_dims.py, which every model checks.
  if (fills_world(plan, run.job.cluster.world_size()) &&
      run.job.sequence_length % (plan.tp * plan.cp * 2) != 0) {
    throw arguments.error("training.seq_len", "found " + std::to_string(run.job.sequence_length) +
                                                  ", expected a multiple of 2 * tp " +
                                                  std::to_string(plan.tp) + " * cp " +
                                                  std::to_string(plan.cp));
  }
  read_global_batch(arguments, local, own_dp, run);
}

void read_refusals(const RunArguments& arguments, RunReading& run) {
  const std::vector<std::string> converters = arguments.texts("model.converters");
  if (!converters.empty()) {
    refuse(run, "model.converters " + joined(converters) + ": quantized linear layers");
  }
  if (arguments.text_or("optimizer.name", "AdamW") != "AdamW") {
    refuse(run,
           "optimizer.name " + arguments.text_or("optimizer.name", "") + ": AdamW is described");
  }
  for (const auto& [name, described] :
       {std::pair{"training.dtype", "float32"},
        std::pair{"training.mixed_precision_param", "bfloat16"},
        std::pair{"training.mixed_precision_reduce", "float32"},
        std::pair{"parallelism.disable_loss_parallel", "false"},
        std::pair{"parallelism.enable_async_tensor_parallel", "false"}}) {
    const std::string word = arguments.text_or(name, described);
    if (word != described) {
      refuse(run, std::string(name) + " " + word + ": " + described + " is described");
    }
  }
}

}  // namespace

RunReading read_torchtitan_run(const RunSettings& settings, const ClusterSpec& cluster,
                               const Library& library) {
  const ArgumentTable table = argument_table(library, "torchtitan");
  RunReading run;
  RunSettings today = settings;
  today.arguments = with_names_of_today(settings, table, run.notes);
  const RunArguments own(settings.file, today.arguments, table);
  const RunArguments arguments(settings.file, resized_arguments(today), table);
  refuse_unknown_names(settings.file, arguments, table);
  run.framework = "torchtitan";
  run.uses = arguments.uses();
  run.unsupported = arguments.first_refused();
  run.job.cluster = cluster;
  run.job.model = torchtitan_model_of(arguments, library, run.notes);
  read_sizes(arguments, run);
  read_pipeline(arguments, run);
  read_training(arguments, sizes_of(own, cluster.world_size()).dp, run);
  read_recompute(arguments, run);
  read_refusals(arguments, run);
  if (take_profile(run, library)) {
    read_options(arguments, run, library);
  }
  read_environment(settings, library, run);
  if (settings.is_configuration && run.has_profile) {
    // run_train.sh: PYTORCH_ALLOC_CONF="expandable_segments:True".
    want(run, "allocator", "caching_expandable", library);
    run.launcher_assumed = true;
  }
  return run;
}

}  // namespace shardplan
