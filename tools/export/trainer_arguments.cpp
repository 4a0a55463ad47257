#include "tools/export/trainer_arguments.h"

#include <array>
#include <string_view>

#include "data/read/case_tuning.h"
#include "data/read/json_message.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tools/export/argument_list.h"
#include "tools/export/savings.h"

namespace shardplan {
namespace {

const char* torch_name(DType dtype) {
  return dtype == DType::kFp32 ? "float32" : dtype == DType::kFp16 ? "float16" : "bfloat16";
}

void add_quantization(ArgumentList& arguments, const Job& job) {
  const Quantization kind = job.quantized.kind;
  if (kind == Quantization::kInt8) {
    arguments.add("--load_in_8bit", "true");
  } else if (kind != Quantization::kNone) {
    arguments.add("--load_in_4bit", "true");
    arguments.add("--bnb_4bit_quant_type", std::string(name_of(kind)));
    arguments.add("--bnb_4bit_use_double_quant", job.quantized.is_double ? "true" : "false");
    arguments.add("--bnb_4bit_quant_storage",
                  job.profile.float_quant_storage ? "bfloat16" : "uint8");
  }
}

// Names of an FFN would stand for experts where no linear layer has them.
std::string target_modules(const Adapters& adapters, const ModelSpec& model) {
  if (adapters.expert_targets == ExpertTargets::kAllLinear) {
    return text_of_targets(adapters);
  }
  const bool has_ffn_modules = model.has_dense_layers() || model.moe.shared_ffn > 0;
  Adapters named = adapters;
  if (adapters.expert_targets == ExpertTargets::kNone && !has_ffn_modules) {
    using enum LinearLayer;
    for (const LinearLayer layer : {kGate, kUp, kDown}) {
      named.targets.at(static_cast<std::size_t>(layer)) = false;
    }
  }
  named.expert_targets = ExpertTargets::kFfnNames;
  return text_of_targets(named);
}

void add_adapters(ArgumentList& arguments, const Adapters& adapters, const ModelSpec& model) {
  if (adapters.rank == 0) {
    return;
  }
  arguments.add("--use_peft", "true");
  arguments.add("--lora_r", adapters.rank);
  arguments.add("--lora_alpha", 2 * adapters.rank, "TODO");
  arguments.add("--lora_dropout", exact_text(adapters.dropout));
  arguments.add("--lora_target_modules", target_modules(adapters, model));
  arguments.add("--lora_dtype", torch_name(adapters.dtype));
  if (adapters.decomposes_weights) {
    arguments.add("--use_dora", "true");
  }
  if (adapters.trains_table || adapters.trains_head) {
    const char* const between = adapters.trains_table && adapters.trains_head ? "," : "";
    arguments.add("--modules_to_save", std::string(adapters.trains_table ? "embed_tokens" : "") +
                                           between + (adapters.trains_head ? "lm_head" : ""));
  }
}

ArgumentGroup model_arguments(const ExportRequest& request) {
  const Job& job = request.job();
  const bool is_flash = job.profile.attention_backend == AttentionBackend::kFlash;
  ArgumentList arguments;
  if (request.model.published.empty()) {
    arguments.add("--model_name_or_path", "model",
                  "TODO: weights beside its config.json; without them they are random");
  } else {
    arguments.add("--model_name_or_path", request.model.published);
  }
  arguments.add("--dtype", torch_name(job.profile.weights_dtype));
  arguments.add("--attn_implementation", is_flash ? "flash_attention_2" : "sdpa");
  if (job.model.moe.num_experts > 0) {
    arguments.add("--experts_implementation", job.profile.eager_experts ? "eager" : "grouped_mm");
  }
  add_quantization(arguments, job);
  add_adapters(arguments, job.adapters, job.model);
  return {.title = "MODEL", .arguments = arguments.arguments()};
}

// Mixed precision is torch's autocast; without it products are in the type of the weights.
// DeepSpeed has a type of its own.
void add_precision(ArgumentList& arguments, const Job& job, const Plan& plan) {
  const bool is_mixed = job.profile.autocast || job.profile.memory_model == MemoryModel::kDeepspeed;
  if (is_mixed && plan.precision == Precision::kBf16) {
    arguments.add("--bf16", "true");
  } else if (is_mixed && plan.precision == Precision::kFp16) {
    arguments.add("--fp16", "true");
  }
}

ArgumentGroup step_arguments(const ExportRequest& request) {
  const Job& job = request.job();
  const Plan& plan = request.plan();
  ArgumentList arguments;
  arguments.add("--per_device_train_batch_size", plan.micro_batch);
  arguments.add("--gradient_accumulation_steps", num_microbatches(job, plan));
  arguments.add("--block_size", job.sequence_length);
  add_precision(arguments, job, plan);
  if (plan.recompute.granularity == RecomputeGranularity::kFull) {
    Plan other = plan;
    other.recompute = {};
    arguments.add(
        "--gradient_checkpointing", "true",
        joined_comment(assumed_mark(request, "recompute"), cost_without(request, job, other)));
    arguments.add("--gradient_checkpointing_kwargs", job.profile.reentrant_checkpoint
                                                         ? "{\"use_reentrant\": true}"
                                                         : "{\"use_reentrant\": false}");
  }
  const LigerKernel kernels = job.profile.liger_kernel;
  if (kernels == LigerKernel::kOn || kernels == LigerKernel::kThrough082) {
    arguments.add("--use_liger_kernel", "true",
                  joined_comment(assumed_mark(request, "liger_kernel"),
                                 cost_with_option(request, "liger_kernel", "off")));
  }
  if (job.profile.tf32) {
    arguments.add("--tf32", "true");
  }
  arguments.add("--optim", trainer_optimizer(job));
  return {.title = "STEP", .arguments = arguments.arguments()};
}

ArgumentGroup training_arguments() {
  ArgumentList arguments;
  arguments.add("--max_steps", "1000", "TODO");
  arguments.add("--learning_rate", "2.0e-5", "TODO");
  arguments.add("--max_grad_norm", "1.0");
  arguments.add("--logging_steps", "1");
  arguments.add("--save_strategy", "no", "TODO: steps, with --save_steps");
  arguments.add("--output_dir", "output", "TODO: on a file system of all nodes");
  arguments.add("--report_to", "none");
  return {.title = "TRAINING", .arguments = arguments.arguments()};
}

}  // namespace

// transformers 5.17 training_args.py, OptimizerNames. torch's AdamW as it comes works by lists of
// tensors.
const char* trainer_optimizer(const Job& job) {
  switch (job.optimizer) {
    case OptimizerKind::kAdamW8bit: return "adamw_bnb_8bit";
    case OptimizerKind::kPagedAdamW: return "paged_adamw_32bit";
    case OptimizerKind::kPagedAdamW8bit: return "paged_adamw_8bit";
    case OptimizerKind::kTorchaoAdamW8bit: return "adamw_torch_8bit";
    case OptimizerKind::kTorchaoAdamW4bit: return "adamw_torch_4bit";
    case OptimizerKind::kAdafactor: return "adafactor";
    case OptimizerKind::kSgd: return "sgd";
    case OptimizerKind::kLion: return "lion_32bit";
    case OptimizerKind::kPagedLion: return "paged_lion_32bit";
    case OptimizerKind::kLion8bit: return "lion_8bit";
    case OptimizerKind::kPagedLion8bit: return "paged_lion_8bit";
    default: return job.profile.fused_optimizer ? "adamw_torch_fused" : "adamw_torch";
  }
}

std::vector<ArgumentGroup> trainer_arguments(const ExportRequest& request) {
  return {model_arguments(request), step_arguments(request), training_arguments()};
}

}  // namespace shardplan
