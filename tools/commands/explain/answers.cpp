#include <array>

#include "tools/commands/explain/terms.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

std::string against_card(const ExplainedJob& job) {
  const std::int64_t card = job.job().cluster.gpu.memory_bytes;
  return "required " + gib(job.stage().required_bytes) + " + outside " +
         gib(job.stage().outside_bytes) + ", device used " + gib(job.stage().device_used_bytes) +
         ", the card " + gib(card) + " GiB";
}
std::string against_rule(const ExplainedJob& job) {
  const double nominal = static_cast<double>(job.job().cluster.gpu.nominal_memory_bytes);
  return "allocated " + gib(job.stage().allocated_bytes) + " GiB, " +
         percent(static_cast<double>(job.stage().allocated_bytes) / nominal) + " of the nominal " +
         shortest(nominal / kGB) + " GB";
}
std::string step(const ExplainedJob& job) {
  const StepTime& time = job.prediction.time;
  return fixed(time.total_s, 3) + " s: compute " + percent(time.compute_s / time.total_s) +
         ", bubble " + percent(time.bubble_s / time.total_s) + ", optimizer " +
         percent(time.optimizer_s / time.total_s);
}
std::string mfu(const ExplainedJob& job) {
  const StepTime& time = job.prediction.time;
  return shortest(time.model_flops_per_token / 1e9) + " GFLOP a token x " +
         whole(time.tokens_per_s_per_gpu) + " tokens/s over " +
         shortest(job.job().cluster.gpu.bf16_flops_per_s / kTera) +
         " TFLOP/s = " + percent(time.mfu);
}
std::string speed(const ExplainedJob& job) {
  const StepTime& time = job.prediction.time;
  return grouped(job.job().global_batch) + " x " + grouped(job.job().sequence_length) +
         " tokens in " + fixed(time.total_s, 3) + " s on " +
         grouped(job.job().cluster.world_size()) + " GPUs: " + whole(time.tokens_per_s_per_gpu) +
         " tokens/s a GPU";
}

constexpr std::array<Term, 15> kTerms = {{
    {.name = "fits",
     .others = " verdict does_not_fit tight invalid unsupported status over ",
     .meaning = "FITS: all that is reserved is on the card, and the memory rule is kept. OVER: on "
                "the card, over the rule. TIGHT: it survives because the allocator gives cached "
                "memory back. DOES NOT FIT: not even that. INVALID: a rule of the framework "
                "forbids the plan. UNSUPPORTED: no row describes it.",
     .formula = "required + outside <= card < device used: TIGHT",
     .numbers = against_card},
    {.name = "rule",
     .others = " memory_threshold memory_basis threshold 80_% ",
     .meaning = "The share of the memory that a plan may use, 80 % of the nominal size unless "
                "--memory-threshold says otherwise. No run of the paper below it ran out of "
                "memory.",
     .formula = "allocated <= threshold x nominal GB (arXiv 2411.06465)",
     .numbers = against_rule},
    {.name = "step",
     .others = " step_s step_time time ",
     .meaning = "Seconds of one optimizer step on the slowest GPU, and where they go. What is "
                "hidden behind computation is not in it twice.",
     .formula = "compute + recompute + exposed communication + bubble + optimizer + host",
     .numbers = step,
     .example = "estimate ... --explain shows every operation"},
    {.name = "tokens/s/gpu",
     .others = " tokens/s speed throughput tokens_per_s_per_gpu ",
     .meaning = "Tokens of the global batch over the seconds of a step and the GPUs.",
     .formula = "B s / (seconds x GPUs)",
     .numbers = speed},
    {.name = "mfu",
     .others = " model_flops_utilization ",
     .meaning = "The FLOPs that the model needs, without recomputation, over the dense peak of the "
                "plan's precision.",
     .formula = "FLOPs of a token (6 N + attention, causal) x tokens/s / peak",
     .numbers = mfu},
    {.name = "tie",
     .others = " rank ties ",
     .meaning = "Plans of one number are closer to each other than the model can tell, within 5 % "
                "of the fastest of them. Take the simplest."},
    {.name = "family",
     .others = " families distinct ",
     .meaning = "Plans of the same tp, cp, ep, pp and zero. search shows the best of each."},
    {.name = "pareto",
     .others = " front ",
     .meaning = "Plans that no other beats in memory and in speed at once.",
     .example = "search ... --pareto"},
    {.name = "evidence",
     .others = " nearest distance measured ",
     .meaning = "The measured runs of the same framework that are closest to the plan, and how far "
                "off the estimate is for them. Distance 1 is one size doubled; 2 another choice."},
    {.name = "assumption",
     .others = " assumptions assumed decides ",
     .meaning = "A choice that nobody stated and that the answer takes. Where the other choice "
                "would turn the verdict, it is marked."},
    {.name = "profile",
     .others = " framework framework_option options switches ",
     .meaning =
         "What a version of a framework does with memory and time, as data: its defaults and "
         "switches, each with its source.",
     .example = "list options megatron"},
    {.name = "limit",
     .others = "",
     .meaning = "The least time of the step, where nothing is lost: every kind of work at the best "
                "rate that was measured for it.",
     .example = "estimate ... --limit"},
    {.name = "host_slowdown",
     .others = " host ",
     .meaning = "How much slower than a DGX a host launches kernels, a number of the cluster's "
                "file. Steps of many small kernels wait for it.",
     .example = "tools/measure_host_speed.py"},
    {.name = "case",
     .others = " case_line batch ",
     .meaning = "One JSON object that says a whole question, for files of many.",
     .example = "batch data/examples/cases.jsonl"},
    {.name = "notes",
     .others = " cut pruned equivalent ",
     .meaning = "What of a plan differs from the first choice, and why plans are not shown: "
                "invalid, equivalent to another, cut by a bound, or too large."},
}};

}  // namespace

std::span<const Term> terms_of_answers() {
  return kTerms;
}

}  // namespace shardplan
