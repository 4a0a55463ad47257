#include <array>

#include "estimator/plan/schedule.h"
#include "tools/commands/explain/terms.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

std::string number(std::string_view name, std::int64_t value) {
  return std::string(name) + " " + grouped(value);
}

std::string sizes(const ExplainedJob& job) {
  const Plan& p = job.plan();
  return number("dp", job.dp()) + " x " + number("tp", p.tp) + " x " + number("cp", p.cp) + " x " +
         number("pp", p.pp) + " = " + number("GPUs:", job.dp() * p.tp * p.cp * p.pp);
}
std::string zero(const ExplainedJob& job) {
  return number("zero", job.plan().zero) + ", " + number("dp", job.dp()) + ": optimizer " +
         gib(job.stage().components[static_cast<std::size_t>(Component::kOptimizer)]) + " GiB of " +
         grouped(job.stage().parameters) + " parameters on a rank";
}
std::string batch(const ExplainedJob& job) {
  return number("global batch", job.job().global_batch) + " = " +
         number("micro-batch", job.plan().micro_batch) + " x " +
         number("microbatches", job.num_microbatches()) + " x " + number("dp", job.dp());
}
std::string heads(const ExplainedJob& job) {
  const ModelSpec& model = job.job().model;
  return number("query heads", model.num_heads) + ", " +
         number("of keys and values", model.num_kv_heads) + ", " + number("tp", job.plan().tp);
}
std::string stages(const ExplainedJob& job) {
  std::string text;
  for (const StageMemory& stage : job.prediction.memory.stages) {
    text += (text.empty() ? "layers of stages: " : ", ") + std::to_string(stage.num_layers);
  }
  return text;
}
std::string bubble(const ExplainedJob& job) {
  const std::int64_t pp = job.plan().pp, m = job.num_microbatches(), v = job.plan().vpp;
  const double share = static_cast<double>(pp - 1) / static_cast<double>(m * v);
  return number("p", pp) + ", " + number("m", m) + ", " + number("v", v) + ": " + percent(share) +
         " of the work; predicted " +
         percent(job.prediction.time.bubble_s / job.prediction.time.total_s) + " of the step";
}
std::string tokens(const ExplainedJob& job) {
  return number("s", job.job().sequence_length) + ", " + number("b", job.plan().micro_batch) +
         ", " + number("cp", job.plan().cp) + ": " +
         number("T", job.job().sequence_length * job.plan().micro_batch / job.plan().cp);
}

constexpr std::array<Term, 20> kTerms = {{
    {.name = "dp",
     .others = " data_parallel ddp data ",
     .meaning = "Copies of the model that work on different sequences and sum their gradients once "
                "a step. It follows from the other sizes.",
     .formula = "dp = GPUs / (tp x cp x pp)",
     .numbers = sizes},
    {.name = "zero",
     .others = " fsdp fsdp2 zero1 zero2 zero3 sharding distributed_optimizer ",
     .meaning = "What data-parallel ranks divide instead of copying: 1 the optimizer, 2 gradients "
                "too, 3 parameters too, gathered layer by layer. FSDP is 3.",
     .formula = "optimizer / dp; zero 2: gradients / dp; zero 3: parameters / dp",
     .numbers = zero,
     .example = "search ... --fix zero=3"},
    {.name = "dp_replicate",
     .others = " rep hsdp hybrid_sharding replicas ",
     .meaning = "Hybrid sharding: state is divided within groups of dp / dp_replicate ranks, and "
                "the groups hold copies. Gathers stay within a group.",
     .formula = "shards = dp / dp_replicate"},
    {.name = "tp",
     .others = " tensor_parallel ",
     .meaning = "Every matrix of a layer is divided over tp GPUs, which exchange activations in "
                "every layer. It belongs inside one node.",
     .formula = "matrices / tp; heads of keys and values >= tp",
     .numbers = heads},
    {.name = "sequence_parallel",
     .others = " sp ",
     .meaning = "Beside tensor parallelism: norms and the residual stream are divided by tokens "
                "over the same GPUs. It saves activations and costs nothing.",
     .formula = "T*h / tp outside attention and FFN",
     .numbers = tokens},
    {.name = "pp",
     .others = " pipeline_parallel stage stages layers ",
     .meaning = "Layers are divided over pp stages; microbatches flow through them. Early stages "
                "keep activations of more microbatches than late ones.",
     .formula = "layers / pp on each stage; embedding on the first, head on the last",
     .numbers = stages},
    {.name = "vpp",
     .others = " virtual_pipeline interleaved chunks ",
     .meaning = "Every stage has vpp chunks of layers in turn. The bubble shrinks, while sends and "
                "kept activations grow.",
     .formula = "bubble / vpp",
     .numbers = bubble},
    {.name = "schedule",
     .others = " 1f1b gpipe zero_bubble zb ",
     .meaning = "The order of forward and backward passes of a stage. gpipe: all forward first, so "
                "that all microbatches are kept. 1f1b: as soon as it can one backward follows each "
                "forward, so that stage i keeps pp - i of them. interleaved: 1f1b over chunks.",
     .formula = "kept microbatches: gpipe m, 1f1b min(m, pp - i)",
     .numbers = bubble},
    {.name = "bubble",
     .others = "",
     .meaning = "Time in which a stage waits for others when the pipeline fills and drains. More "
                "microbatches make it smaller.",
     .formula = "(p - 1) / (m v) of the work; p stages, m microbatches, v chunks of a stage",
     .numbers = bubble},
    {.name = "cp",
     .others = " context_parallel cp_method ring ulysses a2a all_gather ",
     .meaning = "Every sequence is divided over cp GPUs. Attention exchanges keys and values by "
                "ring or all_gather, or heads by a2a.",
     .formula = "T = s b / cp",
     .numbers = tokens},
    {.name = "ep",
     .others = " expert_parallel ",
     .meaning = "The experts of a layer are divided over ep of the data-parallel GPUs; tokens "
                "travel to their experts and back.",
     .formula = "experts / ep on a GPU"},
    {.name = "etp",
     .others = " expert_tensor_parallel ",
     .meaning = "Tensor parallelism of experts alone, which may differ from tp.",
     .formula = "expert matrices / etp"},
    {.name = "micro_batch",
     .others = " mbs micro_batch_size ",
     .meaning =
         "Sequences that a GPU works on at once. Activations grow with it, and small kernels "
         "get faster.",
     .formula = "T = s b / cp",
     .numbers = tokens},
    {.name = "global_batch",
     .others = " microbatches num_microbatches gradient_accumulation batch ",
     .meaning = "Sequences of one optimizer step over all GPUs. It is worked off in microbatches, "
                "whose gradients are added up.",
     .formula = "global batch = micro-batch x microbatches x dp",
     .numbers = batch},
    {.name = "recompute",
     .others = " recomputation activation_checkpointing gradient_checkpointing full/uniform/1 full "
               "selective uniform block ",
     .meaning = "Activations that are not kept but computed again in the backward pass. full: "
                "layers keep their input alone, in groups of n (uniform) or the first n of a chunk "
                "(block). selective: chosen modules. full/block/2 is short for that.",
     .formula = "full/uniform/1 keeps T*h a layer and costs a forward pass",
     .numbers = tokens},
    {.name = "precision",
     .others = " bf16 fp16 fp8 fp32 ",
     .meaning = "The type of products. Main parameters and moments have types of their own: "
                "--master-dtype, --exp-avg-dtype, --exp-avg-sq-dtype."},
    {.name = "offload",
     .others = " offload_optimizer offload_parameters ",
     .meaning = "A part of the state lies in host memory and travels over PCIe or NVLink-C2C."},
    {.name = "lora",
     .others = " qlora adapters lora_rank dora ",
     .meaning = "Fine-tuning that freezes the weights and trains two thin matrices beside chosen "
                "ones. QLoRA holds the frozen weights in 4 bits.",
     .formula = "r x (inputs + outputs) parameters for each chosen matrix; r: rank",
     .example = "estimate --framework transformers --lora-rank 16 --quantize nf4 ..."},
    {.name = "gqa",
     .others = " mla attention grouped_query latent ",
     .meaning = "Grouped-query attention: several query heads share keys and values. Latent "
                "attention (MLA): keys and values are made from a compressed state.",
     .formula = "k heads of keys and values of d columns each; k d T of each is kept",
     .numbers = heads},
    {.name = "rank_order",
     .others = "",
     .meaning = "Which parallel dimension has its ranks next to each other, from slowest to "
                "fastest. Neighbours share a node."},
}};

}  // namespace

std::span<const Term> terms_of_plans() {
  return kTerms;
}

}  // namespace shardplan
