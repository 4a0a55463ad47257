#include "tools/export/torchtitan.h"

#include <algorithm>
#include <string_view>

#include "data/arguments/torchtitan.h"
#include "data/frameworks/profile_fields.h"
#include "data/read/json_message.h"
#include "estimator/plan/parameters.h"
#include "tools/export/argument_list.h"
#include "tools/export/savings.h"
#include "tools/export/script.h"
#include "tools/export/torchtitan_stages.h"

namespace shardplan {
namespace {

bool has_same_shape(const ModelSpec& one, const ModelSpec& other) {
  return one.hidden == other.hidden && one.ffn == other.ffn && one.vocab == other.vocab &&
         one.num_heads == other.num_heads && one.num_kv_heads == other.num_kv_heads &&
         one.layers == other.layers && one.moe.topk == other.moe.topk &&
         one.num_mtp_layers == other.num_mtp_layers &&
         count_parameters(one) == count_parameters(other);
}

// "llama3/8B"
std::string flavor_of(const ExportRequest& request) {
  const std::vector<std::string> flavors = torchtitan_flavors();
  for (const std::string& flavor : flavors) {
    const std::optional<ModelSpec> model = torchtitan_model(flavor, request.library);
    if (has_same_shape(model.value(), request.job().model)) {
      return flavor;
    }
  }
  throw InputError("--export: torchtitan v0.2.2 has no model of the shape of " +
                   request.job().model.name + ", expected one of " + joined(flavors) +
                   "; nothing is written");
}

std::string quoted(const std::string& word) {
  return '"' + word + '"';
}

// What data/arguments/torchtitan.cpp has: a schedule, and how many stages a rank has under it
// unless layers_per_stage says otherwise.
struct ScheduleWord {
  const char* name;
  std::int64_t stages_per_rank;
};
ScheduleWord word_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::kGpipe: return {.name = "GPipe", .stages_per_rank = 1};
    case Schedule::kInterleaved1F1B: return {.name = "Interleaved1F1B", .stages_per_rank = 2};
    case Schedule::kInterleavedZeroBubble:
      return {.name = "InterleavedZeroBubble", .stages_per_rank = 2};
    case Schedule::kZbv: return {.name = "ZBVZeroBubble", .stages_per_rank = 2};
    default: return {.name = "1F1B", .stages_per_rank = 1};
  }
}

void add_pipeline(ArgumentList& section, const ExportRequest& request) {
  const Plan& plan = request.plan();
  section.add("pipeline_parallel_degree", plan.pp);
  if (plan.pp == 1) {
    return;
  }
  const ScheduleWord schedule = word_of(plan.schedule);
  section.add("pipeline_parallel_schedule", quoted(schedule.name));
  section.add("pipeline_parallel_microbatch_size", plan.micro_batch);
  const StageWeights weights = stage_weights(request);
  section.add("pipeline_parallel_first_stage_less_layers", weights.embedding);
  section.add("pipeline_parallel_last_stage_less_layers", weights.head);
  if (plan.vpp != schedule.stages_per_rank) {
    section.add("pipeline_parallel_layers_per_stage", weights.layers_per_stage);
  }
}

ArgumentGroup parallelism(const ExportRequest& request) {
  const Plan& plan = request.plan();
  const Job& job = request.job();
  ArgumentList section;
  section.add("data_parallel_replicate_degree", plan.dp_replicate);
  section.add("data_parallel_shard_degree", data_parallel_size(job, plan) / plan.dp_replicate);
  section.add("fsdp_reshard_after_forward",
              quoted(profile_field_text(job.profile, "reshard_after_forward")));
  section.add("tensor_parallel_degree", plan.tp);
  section.add("enable_async_tensor_parallel", "false");
  add_pipeline(section, request);
  section.add("context_parallel_degree", plan.cp);
  section.add("context_parallel_rotate_method", quoted("allgather"));
  section.add("expert_parallel_degree", plan.ep);
  section.add("expert_tensor_parallel_degree", plan.ep > 1 ? plan.etp : 1);
  return {.title = "parallelism", .arguments = section.arguments()};
}

ArgumentGroup training(const ExportRequest& request) {
  const Plan& plan = request.plan();
  const Job& job = request.job();
  const std::int64_t sequences = num_microbatches(job, plan) * plan.micro_batch;
  ArgumentList section;
  section.add("local_batch_size", plan.pp > 1 ? sequences : plan.micro_batch);
  section.add("global_batch_size", job.global_batch);
  section.add("seq_len", job.sequence_length);
  section.add("max_norm", "1.0");
  section.add("steps", "1000", "TODO");
  section.add("dataset", quoted("c4"), "TODO: your data");
  section.add("mixed_precision_param", quoted("bfloat16"));
  section.add("mixed_precision_reduce", quoted("float32"));
  return {.title = "training", .arguments = section.arguments()};
}

ArgumentGroup recomputation(const ExportRequest& request) {
  const Recompute& recompute = request.plan().recompute;
  ArgumentList section;
  Plan other = request.plan();
  other.recompute = {};
  const bool is_on = recompute.granularity != RecomputeGranularity::kNone;
  section.add("mode", quoted(std::string(name_of(recompute.granularity))),
              is_on ? joined_comment(assumed_mark(request, "recompute"),
                                     cost_without(request, request.job(), other))
                    : "");
  if (recompute.granularity == RecomputeGranularity::kSelective) {
    section.add("selective_ac_option",
                quoted(recompute.policy == "every_second_matmul" ? "op" : "2"));
  }
  return {.title = "activation_checkpoint", .arguments = section.arguments()};
}

ArgumentGroup compilation(const ExportRequest& request) {
  const FrameworkProfile& profile = request.job().profile;
  ArgumentList section;
  section.add("enable", profile.compile ? "true" : "false",
              profile.compile ? joined_comment(assumed_mark(request, "compile"),
                                               cost_with_option(request, "compile", "false"))
                              : "");
  std::string components;
  components += profile.compile_layers ? quoted("model") : "";
  components += profile.compile_layers && profile.compile_loss ? ", " : "";
  components += profile.compile_loss ? quoted("loss") : "";
  section.add("components", "[" + components + "]");
  return {.title = "compile", .arguments = section.arguments()};
}

std::string toml_text(const ExportRequest& request) {
  std::string text = opening_comment(request, "Configuration of torchtitan");
  for (const ArgumentGroup& section : torchtitan_sections(request)) {
    text += "\n[" + section.title + "]\n";
    for (const ExportedArgument& key : section.arguments) {
      text += key.name + " = " + key.values.front();
      text += key.comment.empty() ? "\n" : "  # " + key.comment + "\n";
    }
  }
  return text;
}

}  // namespace

std::vector<ArgumentGroup> torchtitan_sections(const ExportRequest& request) {
  const std::string flavor = flavor_of(request);
  const FrameworkProfile& profile = request.job().profile;
  const std::size_t slash = flavor.find('/');
  ArgumentList model;
  model.add("name", quoted(flavor.substr(0, slash)));
  model.add("flavor", quoted(flavor.substr(slash + 1)));
  model.add("hf_assets_path", quoted("./assets/hf/tokenizer"), "TODO: your tokenizer");
  ArgumentList optimizer;
  optimizer.add("name", quoted("AdamW"));
  optimizer.add("lr", "3.0e-4", "TODO");
  optimizer.add("implementation", quoted(profile.fused_optimizer ? "fused" : "foreach"));
  ArgumentList schedule;
  schedule.add("warmup_steps", "200", "TODO");
  ArgumentList checkpoint;
  checkpoint.add("enable", "false", "TODO: true, with a folder of all nodes");
  ArgumentList debug;
  debug.add("deterministic", profile.deterministic_attention ? "true" : "false");
  return {{.title = "model", .arguments = model.arguments()},
          {.title = "optimizer", .arguments = optimizer.arguments()},
          {.title = "lr_scheduler", .arguments = schedule.arguments()},
          training(request),
          parallelism(request),
          recomputation(request),
          compilation(request),
          {.title = "checkpoint", .arguments = checkpoint.arguments()},
          {.title = "debug", .arguments = debug.arguments()}};
}

std::vector<ExportedFile> torchtitan_files(const ExportRequest& request) {
  const bool expands = request.job().profile.allocator == AllocatorKind::kCachingExpandable;
  std::string text =
      script_opening(request, "torchtitan") + geometry_text(request.job().cluster) + "\n" +
      environment_text(
          {{.name = "PYTORCH_ALLOC_CONF",
            .value = std::string("expandable_segments:") + (expands ? "True" : "False")}}) +
      "\n" + torchrun_text() + "  -m torchtitan.train --job.config_file train.toml\n";
  return {{.name = "launch.sh", .text = text, .is_program = true},
          {.name = "train.toml", .text = toml_text(request)},
          slurm_file(request)};
}

}  // namespace shardplan
