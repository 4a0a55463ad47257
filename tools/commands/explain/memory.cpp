#include <array>

#include "tools/commands/explain/terms.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

std::string in_gib(std::int64_t bytes) {
  return gib(bytes) + " GiB";
}

std::string component(const ExplainedJob& job, Component which) {
  const StageMemory& stage = job.stage();
  return in_gib(stage.components[static_cast<std::size_t>(which)]) + " on stage " +
         std::to_string(stage.pp_rank) + " at its peak, '" + stage.peak_moment() + "'";
}

template <Component which>
std::string at_peak(const ExplainedJob& job) {
  return component(job, which);
}

std::string parameters(const ExplainedJob& job) {
  return grouped(job.stage().parameters) + " parameters of stage " +
         std::to_string(job.stage().pp_rank) + " on one rank of tp " +
         std::to_string(job.plan().tp) + "; " + component(job, Component::kParameters);
}
std::string optimizer(const ExplainedJob& job) {
  return component(job, Component::kOptimizer) + ", zero " + std::to_string(job.plan().zero) +
         " and dp " + std::to_string(job.dp());
}
std::string activations(const ExplainedJob& job) {
  const std::int64_t tokens = job.job().sequence_length * job.plan().micro_batch / job.plan().cp;
  return "T " + grouped(tokens) + ", h " + grouped(job.job().model.hidden) +
         ": one T*h in bf16 is " + in_gib(2 * tokens * job.job().model.hidden) + "; " +
         component(job, Component::kActivations);
}
std::string allocated(const ExplainedJob& job) {
  return in_gib(job.stage().allocated_bytes);
}
std::string reserved(const ExplainedJob& job) {
  return in_gib(job.stage().reserved_bytes) + ", of which " + in_gib(job.stage().allocated_bytes) +
         " are allocated at the peak";
}
std::string required(const ExplainedJob& job) {
  return in_gib(job.stage().required_bytes) + " and " + in_gib(job.stage().outside_bytes) +
         " outside, of " + in_gib(job.job().cluster.gpu.memory_bytes);
}
std::string device_used(const ExplainedJob& job) {
  return in_gib(job.stage().reserved_bytes) + " reserved + " + in_gib(job.stage().outside_bytes) +
         " outside = " + in_gib(job.stage().device_used_bytes) + " of " +
         in_gib(job.job().cluster.gpu.memory_bytes);
}
std::string moments(const ExplainedJob& job) {
  std::string text;
  for (const Moment& moment : job.stage().moments) {
    text +=
        (text.empty() ? "" : ", ") + ("'" + moment.name + "' " + in_gib(moment.allocated_bytes));
  }
  return text;
}
std::string first_step(const ExplainedJob& job) {
  return in_gib(job.stage().first_step_bytes) + " in the first step, " +
         in_gib(job.stage().steady_bytes) + " in every later one, " +
         in_gib(job.stage().state_bytes) + " between steps";
}

constexpr std::array<Term, 16> kTerms = {{
    {.name = "parameters",
     .others = " params weights ",
     .meaning = "The weights that a GPU holds, in the type that products read. The optimizer's own "
                "fp32 copy of them counts as optimizer.",
     .formula = "2 bytes x parameters of the stage / tp (bf16); under zero 3 also / dp",
     .numbers = parameters,
     .example = "estimate ... --explain shows every tensor"},
    {.name = "gradients",
     .others = " grads grad_dtype ",
     .meaning = "The buffer in which gradients are added up and reduced. Its type is --grad-dtype; "
                "zero 2 and 3 keep only a part where the framework does.",
     .formula = "bytes of grad_dtype x parameters of the stage / tp",
     .numbers = at_peak<Component::kGradients>,
     .example = "estimate ... --grad-dtype bf16"},
    {.name = "optimizer",
     .others = " optim adamw ",
     .meaning = "What the optimizer keeps for each parameter: for AdamW the main copy and two "
                "moments, each in fp32 unless the plan says otherwise.",
     .formula = "12 bytes x parameters of the stage / tp / (zero >= 1: dp / dp_replicate)",
     .numbers = optimizer,
     .example = "estimate ... --zero 1"},
    {.name = "activations",
     .others = " activ ",
     .meaning = "What the forward pass keeps for the backward pass, of every microbatch that is "
                "under way. They grow with the tokens of a microbatch; recomputation, tp, sp and "
                "cp shrink them.",
     .formula = "rows of T*h and its kin; T: tokens of a microbatch on a rank, s*b/cp; h: hidden",
     .numbers = activations,
     .example = "estimate ... --recompute full"},
    {.name = "temporaries",
     .others = " temps ",
     .meaning = "Tensors that live for a few operations only: gradients of activations, casts, "
                "buffers of the loss. Those alive at the peak are counted.",
     .numbers = at_peak<Component::kTemporaries>},
    {.name = "communication",
     .others = " comm ",
     .meaning = "Buffers of collectives and of pipeline sends, and what NCCL takes for its "
                "communicators outside the allocator.",
     .numbers = at_peak<Component::kCommunication>},
    {.name = "workspace",
     .others = "",
     .meaning = "Scratch memory of libraries, as cuBLAS and Transformer Engine take it once per "
                "handle and stream.",
     .numbers = at_peak<Component::kWorkspace>},
    {.name = "context",
     .others = " cuda_context ",
     .meaning =
         "What a process holds on the GPU before it allocates anything: the CUDA context and "
         "the code of the libraries. Measured, outside the allocator.",
     .numbers = at_peak<Component::kContext>},
    {.name = "allocated",
     .others = " peak_allocated ",
     .meaning = "Bytes of all tensors at the worst moment of a step: "
                "torch.cuda.max_memory_allocated. Four totals are never mixed: allocated, "
                "reserved, required, device used.",
     .formula = "the sum of all rows in the allocator at the peak",
     .numbers = allocated},
    {.name = "reserved",
     .others = " peak_reserved cached ",
     .meaning = "What PyTorch's caching allocator holds from the driver when memory is plentiful: "
                "torch.cuda.max_memory_reserved. It is more than allocated, because blocks do not "
                "fit each other.",
     .formula = "a replay of the step's allocations in the allocator's own rules",
     .numbers = reserved},
    {.name = "required",
     .others = "",
     .meaning = "The smallest capacity at which the allocator still survives, by giving cached "
                "memory back and asking again. A run between required and reserved is TIGHT.",
     .formula = "fits if required + outside <= the card",
     .numbers = required},
    {.name = "device_used",
     .others = " device used device nvidia-smi ",
     .meaning = "What the driver and nvidia-smi report: all that the allocator reserved, and all "
                "outside it: context, libraries, NCCL.",
     .formula = "reserved + outside the allocator",
     .numbers = device_used},
    {.name = "peak",
     .others = " peak_at moment moments peak_moment ",
     .meaning =
         "The moment of a step at which a stage holds the most. Every moment is counted; the "
         "largest decides.",
     .numbers = moments},
    {.name = "first_step",
     .others = " steady after_init state between_steps ",
     .meaning = "The first step runs before the optimizer has its state, later ones with it. The "
                "peak is the larger of both.",
     .numbers = first_step},
    {.name = "row",
     .others = " ledger rows ",
     .meaning = "One kind of tensor in the estimate: its name, elements, type, how many are alive "
                "at the peak, when it is made and freed, its formula and source.",
     .example = "estimate ... --explain"},
    {.name = "outside",
     .others = " outside_the_allocator ",
     .meaning = "Memory that PyTorch does not know of: CUDA context, kernels of libraries, NCCL's "
                "buffers. It is measured by GPU and framework.",
     .formula = "context + libraries + communicators",
     .numbers = device_used},
}};

}  // namespace

std::span<const Term> terms_of_memory() {
  return kTerms;
}

}  // namespace shardplan
