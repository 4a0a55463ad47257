#include "tools/export/megatron_plan.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/frameworks/profile_fields.h"
#include "data/read/input_error.h"
#include "data/read/json_message.h"
#include "estimator/plan/layer_partition.h"
#include "tools/export/argument_list.h"
#include "tools/export/savings.h"

namespace shardplan {
namespace {

using PlanChange = void (*)(Plan&);

// Of a switch that the plan has: whether anybody asked for it, and what it saves.
std::string comment_of(const ExportRequest& request, const std::string& field, PlanChange undo) {
  Plan other = request.plan();
  undo(other);
  return joined_comment(assumed_mark(request, field), cost_without(request, request.job(), other));
}

std::string comment_of_option(const ExportRequest& request, const std::string& option,
                              const std::string& other_word) {
  return joined_comment(assumed_mark(request, option),
                        cost_with_option(request, option, other_word));
}

// "Et*3|t*4|t*4L": layers of each chunk, in model order, between the two ends
// (core/transformer/pipeline_parallel_layer_layout.py).
std::string layout_of(const Plan& plan, std::int64_t num_mtp_layers) {
  std::string text = "E";
  for (std::size_t chunk = 0; chunk < plan.layers_per_chunk.size(); ++chunk) {
    const std::int64_t layers = plan.layers_per_chunk[chunk];
    text += chunk > 0 ? "|" : "";
    text += layers == 0 ? "" : layers == 1 ? "t" : "t*" + std::to_string(layers);
  }
  return text + std::string(static_cast<std::size_t>(num_mtp_layers), 'm') + "L";
}

bool has_even_chunks(const Plan& plan) {
  return std::ranges::adjacent_find(plan.layers_per_chunk, std::not_equal_to<>()) ==
         plan.layers_per_chunk.end();
}

void add_pipeline(ArgumentList& arguments, const ExportRequest& request) {
  const Plan& plan = request.plan();
  const FrameworkProfile& profile = request.job().profile;
  arguments.add("--pipeline-model-parallel-size", plan.pp);
  if (!has_even_chunks(plan)) {
    arguments.add("--pipeline-model-parallel-layout",
                  layout_of(plan, request.job().model.num_mtp_layers));
  } else if (plan.vpp > 1) {
    arguments.add("--num-virtual-stages-per-pipeline-rank", plan.vpp);
  }
  if (has_even_chunks(plan) && plan.layers_per_chunk.empty()) {
    arguments.add_switch_if(profile.account_for_embedding_in_split,
                            "--account-for-embedding-in-pipeline-split");
    arguments.add_switch_if(profile.account_for_loss_in_split,
                            "--account-for-loss-in-pipeline-split");
  }
  if (plan.vpp > 1 && profile.microbatch_group_size > 0) {
    arguments.add("--microbatch-group-size-per-virtual-pipeline-stage",
                  profile.microbatch_group_size);
  }
  if (plan.vpp > 1) {  // on by default there, off everywhere else
    arguments.add_switch_if(!profile.overlap_p2p_comm, "--no-overlap-p2p-communication");
  }
}

void add_experts(ArgumentList& arguments, const ExportRequest& request) {
  const Plan& plan = request.plan();
  if (request.job().model.moe.num_experts == 0) {
    return;
  }
  arguments.add("--expert-model-parallel-size", plan.ep);
  arguments.add("--expert-tensor-parallel-size", plan.etp,
                comment_of(request, "etp", [](Plan& other) { other.etp = other.tp; }));
}

void add_sharding(ArgumentList& arguments, const ExportRequest& request) {
  constexpr std::array<const char*, 4> kStrategies = {"no_shard", "optim", "optim_grads",
                                                      "optim_grads_params"};
  const Plan& plan = request.plan();
  const FrameworkProfile& profile = request.job().profile;
  if (plan.zero > 0) {
    arguments.add_switch("--use-distributed-optimizer",
                         comment_of(request, "zero", [](Plan& other) { other.zero = 0; }));
  }
  if (uses_megatron_fsdp(plan)) {
    arguments.add_switch("--use-megatron-fsdp");
    arguments.add("--data-parallel-sharding-strategy",
                  kStrategies[static_cast<std::size_t>(plan.zero)]);
    arguments.add("--ckpt-format", "fsdp_dtensor");
    arguments.add_switch_if(profile.init_model_with_meta_device, "--init-model-with-meta-device");
    arguments.add_switch_if(profile.log_params_norm, "--log-params-norm");
    arguments.add_switch_if(profile.fsdp_double_buffer, "--fsdp-double-buffer");
    if (profile.suggested_communication_unit_size > 0) {
      arguments.add("--suggested-communication-unit-size",
                    profile.suggested_communication_unit_size);
    }
  }
  arguments.add_switch_if(profile.nccl_ub, "--use-nccl-ub");
  if (plan.dp_replicate > 1) {
    arguments.add("--num-distributed-optimizer-instances", plan.dp_replicate);
  }
  if (profile.overlap_grad_reduce) {
    arguments.add_switch("--overlap-grad-reduce",
                         comment_of_option(request, "overlap_grad_reduce", "false"));
  }
  if (profile.overlap_param_gather) {
    arguments.add_switch("--overlap-param-gather",
                         comment_of_option(request, "overlap_param_gather", "false"));
  }
}

void add_recomputation(ArgumentList& arguments, const ExportRequest& request) {
  const Recompute& recompute = request.plan().recompute;
  if (recompute.granularity == RecomputeGranularity::kNone) {
    return;
  }
  arguments.add("--recompute-granularity", std::string(name_of(recompute.granularity)),
                comment_of(request, "recompute", [](Plan& other) { other.recompute = {}; }));
  if (recompute.granularity == RecomputeGranularity::kFull) {
    arguments.add("--recompute-method", std::string(name_of(recompute.method)));
    arguments.add("--recompute-num-layers", recompute.num_layers);
    return;
  }
  std::vector<std::string> modules;
  for (const auto& module : kRecomputeModules) {
    if (recompute.modules.*module.value) {
      modules.emplace_back(module.name);
    }
  }
  arguments.add_list("--recompute-modules", modules);
}

// What data/arguments/megatron_plan.cpp, read_types, has: a state of other types is the
// precision-aware optimizer's, and so is one in host memory.
void add_types(ArgumentList& arguments, const Job& job, const Plan& plan) {
  const bool is_fp8 = plan.precision == Precision::kFp8;
  const bool is_bf16 = plan.precision == Precision::kBf16 || is_fp8;
  arguments.add_switch_if(is_bf16, "--bf16");
  arguments.add_switch_if(plan.precision == Precision::kFp16, "--fp16");
  if (is_fp8) {
    arguments.add("--fp8-format", "hybrid");
    arguments.add("--fp8-recipe", std::string(name_of(job.profile.fp8_recipe)));
    arguments.add_switch_if(job.profile.fp8_param_gather, "--fp8-param-gather");
    arguments.add_switch_if(
        job.profile.fp8_param_gather && job.profile.fp8_recipe == Fp8Recipe::kMxfp8,
        "--reuse-grad-buf-for-mxfp8-param-ag");
  }
  arguments.add_switch_if(is_bf16 && plan.grad_dtype == DType::kBf16, "--grad-reduce-in-bf16");
  arguments.add_switch_if(plan.grad_dtype == DType::kFp32 && plan.precision != Precision::kFp32,
                          "--accumulate-allreduce-grads-in-fp32");
}

void add_optimizer(ArgumentList& arguments, const ExportRequest& request) {
  const Job& job = request.job();
  const Plan& plan = request.plan();
  switch (job.optimizer) {
    case OptimizerKind::kSgdMomentum: arguments.add("--optimizer", "sgd"); break;
    case OptimizerKind::kMuon: arguments.add("--optimizer", "muon"); break;
    case OptimizerKind::kDistMuon: arguments.add("--optimizer", "dist_muon"); break;
    default: arguments.add("--optimizer", "adam"); break;
  }
  arguments.add_switch_if(uses_muon(job) && job.profile.muon_nesterov, "--muon-use-nesterov");
  const bool is_plain = plan.master_dtype == DType::kFp32 && plan.exp_avg_dtype == DType::kFp32 &&
                        plan.exp_avg_sq_dtype == DType::kFp32;
  if (!is_plain || plan.offload.optimizer > 0) {
    arguments.add_switch("--use-precision-aware-optimizer");
  }
  if (!is_plain) {
    const bool keeps_remainders = plan.master_dtype == DType::kBf16;  // beside weights in bf16
    arguments.add("--main-params-dtype",
                  keeps_remainders ? "fp32" : std::string(name_of(plan.master_dtype)));
    arguments.add("--exp-avg-dtype", std::string(name_of(plan.exp_avg_dtype)));
    arguments.add("--exp-avg-sq-dtype", std::string(name_of(plan.exp_avg_sq_dtype)));
  }
  if (plan.offload.optimizer > 0) {
    arguments.add_switch("--optimizer-cpu-offload");
    arguments.add("--optimizer-offload-fraction", exact_text(plan.offload.optimizer));
  }
}

// The data loader's mask and the loss over the logits, which Megatron-LM's own defaults make
// larger.
void add_loss(ArgumentList& arguments, const ExportRequest& request) {
  const FrameworkProfile& profile = request.job().profile;
  if (!profile.attention_mask) {
    arguments.add_switch("--no-create-attention-mask-in-dataloader",
                         comment_of_option(request, "attention_mask", "true"));
  }
  if (profile.cross_entropy != CrossEntropyKind::kUnfused) {
    const bool is_native = profile.cross_entropy == CrossEntropyKind::kNativeFused;
    arguments.add_switch("--cross-entropy-loss-fusion",
                         comment_of_option(request, "cross_entropy", "unfused"));
    arguments.add("--cross-entropy-fusion-impl", is_native ? "native" : "te");
  }
  if (profile.deferred_embedding_wgrads > 0) {
    arguments.add_switch("--defer-embedding-wgrad-compute");
    arguments.add("--wgrad-deferral-limit", profile.deferred_embedding_wgrads);
  }
}

void add_dispatcher(ArgumentList& arguments, const ExportRequest& request) {
  const FrameworkProfile& profile = request.job().profile;
  const bool is_flexible = profile.moe_dispatcher == MoeDispatcher::kDeepEp ||
                           profile.moe_dispatcher == MoeDispatcher::kHybridEp;
  const std::string dispatcher = profile_field_text(profile, "moe_dispatcher");
  arguments.add("--moe-token-dispatcher-type", is_flexible ? "flex" : dispatcher,
                joined_comment(assumed_mark(request, "moe_dispatcher"),
                               cost_with_option(request, "moe_dispatcher", "allgather")));
  if (is_flexible) {
    arguments.add("--moe-flex-dispatcher-backend", dispatcher);
  }
  if (profile.moe_router_dtype == DType::kFp32) {
    arguments.add("--moe-router-dtype", "fp32");
  }
  if (profile.moe_grouped_gemm) {
    arguments.add_switch("--moe-grouped-gemm",
                         comment_of_option(request, "moe_grouped_gemm", "false"));
  }
  if (profile.moe_permute_fusion) {
    arguments.add_switch("--moe-permute-fusion",
                         comment_of_option(request, "moe_permute_fusion", "false"));
  }
  arguments.add_switch_if(profile.moe_router_fusion, "--moe-router-fusion");
  arguments.add_switch_if(profile.moe_shared_expert_overlap, "--moe-shared-expert-overlap");
  if (profile.moe_capacity_factor > 0) {
    arguments.add("--moe-expert-capacity-factor", exact_text(profile.moe_capacity_factor));
    arguments.add_switch("--moe-pad-expert-input-to-capacity");
  }
  if (profile.overlap_moe_expert_parallel_comm) {
    arguments.add_switch("--overlap-moe-expert-parallel-comm");
    arguments.add_switch("--delay-wgrad-compute");
  }
}

// data/arguments/megatron.cpp, graphs_of, says what each of these is.
void add_graphs(ArgumentList& arguments, const ExportRequest& request) {
  const CudaGraphs graphs = request.job().profile.cuda_graphs;
  if (graphs == CudaGraphs::kNone) {
    return;
  }
  const bool is_local = graphs == CudaGraphs::kIteration;
  arguments.add("--cuda-graph-impl", is_local ? "local" : "transformer_engine");
  if (graphs != CudaGraphs::kLayers) {
    arguments.add("--cuda-graph-scope", is_local                           ? "full_iteration"
                                        : graphs == CudaGraphs::kAttention ? "attn"
                                                                           : "moe_router");
  }
  arguments.add_switch("--te-rng-tracker");
  arguments.add_switch_if(is_local, "--no-check-for-nan-in-loss-and-grad");
  // Of inference alone, and validate_args wants it beside graphs of the whole step.
  arguments.add_switch_if(is_local && request.plan().ep > 1,
                          "--moe-pad-experts-for-cuda-graph-inference");
}

}  // namespace

bool uses_megatron_fsdp(const Plan& plan) {
  return plan.zero > 1;
}

std::vector<ExportedArgument> megatron_parallel_arguments(const ExportRequest& request) {
  const Plan& plan = request.plan();
  ArgumentList arguments;
  arguments.add("--tensor-model-parallel-size", plan.tp);
  if (plan.sequence_parallel) {
    arguments.add_switch("--sequence-parallel",
                         comment_of(request, "sequence_parallel",
                                    [](Plan& other) { other.sequence_parallel = false; }));
  }
  arguments.add_switch_if(request.job().profile.tp_overlap == TpOverlap::kPieces && plan.tp > 1,
                          "--tp-comm-overlap");
  add_pipeline(arguments, request);
  arguments.add("--context-parallel-size", plan.cp);
  if (plan.cp > 1) {
    arguments.add("--cp-comm-type", plan.cp_method == CpMethod::kRing        ? "p2p"
                                    : plan.cp_method == CpMethod::kAllGather ? "all_gather"
                                                                             : "a2a");
  }
  add_experts(arguments, request);
  add_sharding(arguments, request);
  arguments.add_switch_if(plan.rank_order.front() == Dimension::kDp, "--use-tp-pp-dp-mapping");
  return arguments.arguments();
}

std::vector<ExportedArgument> megatron_memory_arguments(const ExportRequest& request) {
  ArgumentList arguments;
  add_types(arguments, request.job(), request.plan());
  add_optimizer(arguments, request);
  add_recomputation(arguments, request);
  add_loss(arguments, request);
  return arguments.arguments();
}

std::vector<ExportedArgument> megatron_kernel_arguments(const ExportRequest& request) {
  const Job& job = request.job();
  const FrameworkProfile& profile = job.profile;
  const bool is_local = profile.attention_backend == AttentionBackend::kLocal;
  ArgumentList arguments;
  arguments.add("--transformer-impl", is_local ? "local" : "transformer_engine");
  if (!is_local) {
    arguments.add("--attention-backend", profile_field_text(profile, "attention_backend"));
  }
  arguments.add_switch_if(is_local, "--no-persist-layer-norm");
  arguments.add_switch_if(!profile.masked_softmax_fusion, "--no-masked-softmax-fusion");
  arguments.add_switch_if(profile.attention_softmax_in_fp32, "--attention-softmax-in-fp32");
  if (!profile.gradient_accumulation_fusion) {
    arguments.add_switch("--no-gradient-accumulation-fusion");
  }
  arguments.add_switch_if(!profile.rope_fusion, "--no-rope-fusion");
  const bool is_quick = job.model.activation == Activation::kClampedSwiglu;
  arguments.add_switch_if(profile.swiglu == SwigluKind::kUnfused && job.model.gated_ffn,
                          is_quick ? "--no-bias-gelu-fusion" : "--no-bias-swiglu-fusion");
  if (job.model.moe.num_experts > 0) {
    add_dispatcher(arguments, request);
  }
  add_graphs(arguments, request);
  return arguments.arguments();
}

}  // namespace shardplan
