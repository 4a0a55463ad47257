#include "tools/export/megatron.h"

#include <initializer_list>
#include <utility>

#include "data/read/input_error.h"
#include "tools/export/argument_list.h"
#include "tools/export/megatron_model.h"
#include "tools/export/megatron_plan.h"
#include "tools/export/script.h"

namespace shardplan {
namespace {

std::vector<ExportedArgument> training_arguments(const ExportRequest& request) {
  const Job& job = request.job();
  ArgumentList arguments;
  arguments.add("--micro-batch-size", request.plan().micro_batch);
  arguments.add("--global-batch-size", job.global_batch);
  arguments.add("--train-iters", "1000", "TODO");
  arguments.add("--lr", "3.0e-4", "TODO");
  arguments.add("--lr-decay-style", "constant", "TODO");
  arguments.add("--clip-grad", "1.0");
  arguments.add("--log-interval", "1");
  arguments.add("--save", "\"$CHECKPOINT_PATH\"");
  arguments.add("--save-interval", "1000", "TODO");
  return arguments.arguments();
}

// NullTokenizer adds an end of document to --vocab-size: megatron/training/tokenizer/tokenizer.py
// of core_v0.16.1, as all releases up to core_v0.17.1.
std::vector<ExportedArgument> data_arguments(const Job& job) {
  ArgumentList arguments;
  arguments.add_switch("--mock-data", "TODO: --data-path PREFIX; these are made up");
  arguments.add("--eval-interval", "1000", "TODO; core_v0.16.1 does not start without one");
  arguments.add("--eval-iters", "0", "TODO");
  arguments.add("--tokenizer-type", "NullTokenizer",
                "TODO: your tokenizer, with " + std::to_string(job.model.vocab) + " tokens");
  arguments.add("--vocab-size", job.model.vocab - 1, "NullTokenizer adds one");
  return arguments.arguments();
}

// training/arguments.py, validate_args: one connection keeps kernels of exchanges in order before
// Blackwell; Megatron-FSDP refuses it, and exchanges of experts beside another microbatch want many
// (docs of --overlap-moe-expert-parallel-comm).
std::string device_connections(const Job& job, const Plan& plan) {
  constexpr std::int64_t kBlackwell = 100;
  if (job.profile.overlap_moe_expert_parallel_comm) {
    return "32";
  }
  const bool is_needed = (plan.tp > 1 || plan.cp > 1) &&
                         job.cluster.gpu.compute_capability < kBlackwell &&
                         !uses_megatron_fsdp(plan);
  return is_needed ? "1" : uses_megatron_fsdp(plan) ? "8" : "";
}

std::vector<ExportedVariable> environment_of(const Job& job, const Plan& plan) {
  const FrameworkProfile& profile = job.profile;
  std::vector<ExportedVariable> variables;
  if (const std::string connections = device_connections(job, plan); !connections.empty()) {
    variables.push_back({.name = "CUDA_DEVICE_MAX_CONNECTIONS", .value = connections});
  }
  const bool expands = profile.allocator == AllocatorKind::kCachingExpandable;
  variables.push_back(
      {.name = "PYTORCH_CUDA_ALLOC_CONF",
       .value = std::string("expandable_segments:") + (expands ? "True" : "False")});
  if (expands && profile.cuda_graphs != CudaGraphs::kNone) {  // validate_args wants it beside them
    variables.push_back({.name = "NCCL_GRAPH_REGISTER", .value = "0"});
  }
  if (profile.torch_workspace_bytes > 0) {
    variables.push_back(
        {.name = "CUBLAS_WORKSPACE_CONFIG",
         .value = ":" + std::to_string(profile.torch_workspace_bytes / 1024) + ":1"});
  }
  if (profile.deterministic_attention) {
    variables.push_back({.name = "NVTE_ALLOW_NONDETERMINISTIC_ALGO", .value = "0"});
  }
  if (profile.launch_blocking) {
    variables.push_back({.name = "CUDA_LAUNCH_BLOCKING", .value = "1"});
  }
  return variables;
}

// Without Transformer Engine and APEX, which is what PyTorch's AdamW tells, Megatron-LM stops at
// what only they have: core/transformer/transformer_config.py, core/fusions/fused_softmax.py,
// core/transformer/torch_norm.py, core/models/common/language_module/language_module.py.
void refuse_absent_kernels(const Job& job, const Plan& plan) {
  const FrameworkProfile& profile = job.profile;
  const bool is_local = profile.attention_backend == AttentionBackend::kLocal;
  const bool has_experts = job.model.moe.num_experts > 0;
  if (!profile.fused_optimizer && has_experts) {  // core/transformer/moe/moe_utils.py
    throw InputError(
        "--export: fused_optimizer false: Megatron-LM takes PyTorch's AdamW where neither "
        "Transformer Engine nor APEX is installed; its router needs Transformer Engine; nothing is "
        "written");
  }
  const std::initializer_list<std::pair<bool, const char*>> needs = {
      {!is_local, "attention_backend=local"},
      {profile.rope_fusion && job.model.learned_positions == 0, "rope_fusion=false"},
      {is_local && profile.masked_softmax_fusion, "masked_softmax_fusion=false"},
      {profile.gradient_accumulation_fusion, "gradient_accumulation_fusion=false"},
      {profile.cross_entropy == CrossEntropyKind::kTeFused ||
           profile.cross_entropy == CrossEntropyKind::kTeFusedSeparateGrad,
       "cross_entropy=native_fused"},
      {plan.sequence_parallel, "sequence_parallel=off"}};
  std::string expected;
  for (const auto& [is_needed, setting] : needs) {
    if (is_needed) {
      expected.append(expected.empty() ? "" : ", ").append(setting);
    }
  }
  if (!profile.fused_optimizer && !expected.empty()) {
    throw InputError(
        "--export: fused_optimizer false: Megatron-LM takes PyTorch's AdamW where neither "
        "Transformer Engine nor APEX is installed; without them it starts only with --set " +
        expected + "; nothing is written");
  }
}

}  // namespace

std::vector<ArgumentGroup> megatron_groups(const ExportRequest& request) {
  std::vector<ArgumentGroup> groups = {
      {.title = "MODEL", .arguments = megatron_model_arguments(request)},
      {.title = "EXPERT", .arguments = megatron_expert_arguments(request)},
      {.title = "PARALLEL", .arguments = megatron_parallel_arguments(request)},
      {.title = "MEMORY", .arguments = megatron_memory_arguments(request)},
      {.title = "KERNEL", .arguments = megatron_kernel_arguments(request)},
      {.title = "TRAINING", .arguments = training_arguments(request)},
      {.title = "DATA", .arguments = data_arguments(request.job())}};
  std::erase_if(groups, [](const ArgumentGroup& group) { return group.arguments.empty(); });
  return groups;
}

std::vector<ExportedFile> megatron_files(const ExportRequest& request) {
  refuse_absent_kernels(request.job(), request.plan());
  const std::vector<ArgumentGroup> groups = megatron_groups(request);
  std::string text = script_opening(request, "Megatron-LM");
  text +=
      "MEGATRON_PATH=\"${MEGATRON_PATH:-Megatron-LM}\"  # TODO: your checkout\n"
      "CHECKPOINT_PATH=\"${CHECKPOINT_PATH:-checkpoints}\"  # TODO: on a file system of all "
      "nodes\n" +
      geometry_text(request.job().cluster) + "\n" +
      environment_text(environment_of(request.job(), request.plan())) + "\n";
  for (const ArgumentGroup& group : groups) { text += array_text(group); }
  text += "\n" + torchrun_text() + "  \"$MEGATRON_PATH/" + megatron_program(request.job().model) +
          "\"" + array_words(groups) + "\n";
  return {{.name = "launch.sh", .text = text, .is_program = true}, slurm_file(request)};
}

}  // namespace shardplan
