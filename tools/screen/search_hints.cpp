#include "tools/screen/search_hints.h"

#include <algorithm>

#include "data/read/json_message.h"
#include "search/walk/rank.h"
#include "tools/commands/verdict.h"
#include "tools/options/plan_words.h"
#include "tools/options/words.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

using Hints = std::vector<Hint>;

// "1 layer in the first chunk, none in the last, 6 between".
std::string layers_words(const std::vector<std::int64_t>& layers) {
  const auto count = [](std::int64_t number) {
    return number == 0 ? std::string("none") : std::to_string(number);
  };
  const std::string between = std::ssize(layers) > 2 ? ", " + count(layers[1]) + " between" : "";
  return "layers: " + count(layers.front()) + " in the first chunk, " + count(layers.back()) +
         " in the last" + between;
}

std::string sizes_text(const Job& job, const Plan& plan) {
  std::string text = "tp " + std::to_string(plan.tp) + " cp " + std::to_string(plan.cp);
  if (job.model.moe.num_experts > 0) {
    text += " ep " + std::to_string(plan.ep) + " etp " + std::to_string(plan.etp);
  }
  return text + " pp " + std::to_string(plan.pp) + " zero " + std::to_string(plan.zero);
}

// "1.8 % slower".
std::string speed_against(const RankedPlan& other, const RankedPlan& than) {
  const double ratio = other.time.tokens_per_s_per_gpu / than.time.tokens_per_s_per_gpu;
  return ratio >= 1 ? percent(ratio - 1) + " faster" : percent(1 - ratio) + " slower";
}

// How much slower the best plan of other sizes is, if any is shown.
void add_next_family(const SearchReport& report, Hints& hints) {
  const SearchResult& result = report.result;
  const RankedPlan& best = report.chosen();
  const auto next = std::ranges::find_if(result.top, [&](const RankedPlan& ranked) {
    return family_of(ranked.plan) != family_of(best.plan);
  });
  if (next == result.top.end()) {
    return;
  }
  hints.push_back({"next sizes", sizes_text(report.job, next->plan) + ", rank " +
                                     std::to_string(next - result.top.begin() + 1) + ": " +
                                     speed_against(*next, best)});
}

// A first plan that lives on memory that its allocator gives back, and the first that does not.
void add_tight(const SearchReport& report, Hints& hints) {
  const std::vector<RankedPlan>& top = report.result.top;
  const RankedPlan& best = report.chosen();
  if (best.memory.fit != Fit::kTight) {
    return;
  }
  const auto roomy = std::ranges::find_if(
      top, [](const RankedPlan& ranked) { return ranked.memory.fit == Fit::kFits; });
  const std::string without =
      roomy == top.end()
          ? "none shown runs without"
          : "rank " + std::to_string(roomy - top.begin() + 1) + " runs without, " +
                percent(1 - roomy->time.tokens_per_s_per_gpu / best.time.tokens_per_s_per_gpu) +
                " slower";
  hints.push_back({"tight", "device used " +
                                gib(basis_bytes(best.memory, MemoryBasis::kDeviceUsed)) + " of " +
                                gib(card_bytes(report.job)) +
                                " GiB: it must give cached memory back to run; " + without});
}

// What the rule costs.
void add_over(const SearchReport& report, Hints& hints) {
  if (!report.faster_over) {
    return;
  }
  const double faster =
      report.faster_over->time.tokens_per_s_per_gpu / report.chosen().time.tokens_per_s_per_gpu - 1;
  const std::string share = shortest(100 * report.rule.threshold) + " %";
  hints.push_back({"over " + share, "fastest over " + share + ": " + percent(faster) +
                                        " faster, --memory-threshold none"});
}

// The fastest of all, where a simpler plan stands before it.
void add_fastest(const SearchReport& report, Hints& hints) {
  const std::vector<RankedPlan>& top = report.result.top;
  const auto fastest = std::ranges::min_element(
      top, {}, [](const RankedPlan& ranked) { return ranked.time.total_s; });
  if (fastest->time.total_s < report.chosen().time.total_s) {
    hints.push_back({"fastest", "rank " + std::to_string(fastest - top.begin() + 1) + ": " +
                                    speed_against(*fastest, report.chosen()) +
                                    (fastest->tied_group == report.chosen().tied_group
                                         ? ", closer than the model can tell: simpler plans and "
                                           "those near measured runs come first"
                                         : "")});
  }
}

void add_switches(const SearchReport& report, Hints& hints) {
  if (!report.switches) {
    return;
  }
  const double step_s = report.chosen().time.total_s;
  hints.push_back(
      {"faster with", joined(report.switches->options) + ": " +
                          fixed(report.switches->step_time_s, 3) + " s, " +
                          percent(step_s / report.switches->step_time_s - 1) + " more tokens/s; " +
                          (report.run ? "--set" : "--framework-option") + " ranks all plans so"});
}

bool has_verdict(const SearchReport& report, MemoryVerdict verdict) {
  return report.verdict == name_of(verdict);
}

}  // namespace

// What distinguishes plans and has no column of its own.
std::string notes_of(const RankedPlan& ranked) {
  const Plan& plan = ranked.plan;
  const Plan plain;
  std::vector<std::string> notes;
  switch (ranked.memory.fit) {
    case Fit::kFits: break;
    case Fit::kTight: notes.emplace_back("TIGHT"); break;
    case Fit::kDoesNotFit: notes.emplace_back("EXCEEDS THE CARD"); break;
  }
  if (plan.cp > 1) {
    notes.push_back("cp by " + std::string(name_of(plan.cp_method)));
  }
  if (!plan.layers_per_chunk.empty()) {
    notes.push_back(layers_words(plan.layers_per_chunk));
  }
  if (plan.precision != plain.precision) {
    notes.emplace_back(name_of(plan.precision));
  }
  if (plan.grad_dtype != plain.grad_dtype) {
    notes.push_back("gradients " + std::string(name_of(plan.grad_dtype)));
  }
  if (plan.rank_order != plain.rank_order) {
    notes.push_back(dimensions_text(plan.rank_order));
  }
  if (plan.master_dtype != plain.master_dtype) {
    notes.push_back("master " + std::string(name_of(plan.master_dtype)));
  }
  if (plan.exp_avg_dtype != plain.exp_avg_dtype ||
      plan.exp_avg_sq_dtype != plain.exp_avg_sq_dtype) {
    notes.push_back("moments " + std::string(name_of(plan.exp_avg_dtype)) + ", " +
                    std::string(name_of(plan.exp_avg_sq_dtype)));
  }
  if (plan.offload.optimizer > 0) {
    notes.push_back(percent(plan.offload.optimizer) + " of the optimizer offloaded");
  }
  if (plan.offload.parameters) {
    notes.emplace_back("parameters offloaded");
  }
  return joined(notes);
}

std::string verdict_words(const SearchReport& report) {
  for (const auto& row : kMemoryVerdicts) {
    if (row.name == report.verdict) {
      return verdict_words(Judgement{.verdict = row.value, .rule = report.rule, .check = {}});
    }
  }
  return report.verdict == "unsupported" ? "UNSUPPORTED" : "INVALID";
}

Colour verdict_colour(const SearchReport& report) {
  const auto verdict = value_of<MemoryVerdict>(report.verdict);
  return verdict ? verdict_colour(*verdict) : Colour::kRed;
}

std::string no_plan_words(const SearchReport& report) {
  const SearchResult& result = report.result;
  if (result.plans_distinct == 0) {
    return "no plan of this space is valid; the rules below say why";
  }
  const std::string smallest = "the smallest valid plan allocates " +
                               gib(result.smallest_price.allocated_bytes) + " GiB, at most " +
                               gib(result.smallest_price.device_used_bytes) +
                               " GiB on the device; the limit is " +
                               gib(memory_limit_bytes(report.job.cluster, report.rule)) + " GiB, " +
                               limit_text(report.job.cluster, report.rule) + "; the card has " +
                               gib(card_bytes(report.job)) + " GiB";
  return has_verdict(report, MemoryVerdict::kTight)
             ? "no plan fits; some run if the allocator gives cached memory back: --allow-tight "
               "--memory-threshold none lists them; " +
                   smallest
             : smallest;
}

std::vector<Hint> other_size_hints(const SearchReport& report) {
  Hints hints;
  const std::int64_t world = report.job.cluster.world_size();
  const double own = report.result.top.empty()
                         ? 0
                         : report.chosen().time.tokens_per_s_per_gpu * static_cast<double>(world);
  for (const OtherSize& size : report.other_sizes) {
    const char* const label = size.global_batch != report.job.global_batch ? "larger batch"
                              : size.num_gpus < world                      ? "fewer GPUs"
                              : size.num_gpus > world                      ? "more GPUs"
                                                                           : "offload";
    hints.push_back(
        {label, size.option + ": " + whole(size.tokens_per_s_per_gpu) + " tokens/s per GPU, " +
                    whole(size.tokens_per_s) + " of all" +
                    (own > 0 ? ", " + percent(size.tokens_per_s / own) + " of those here" : "")});
  }
  return hints;
}

std::vector<Hint> first_plan_hints(const SearchReport& report) {
  Hints hints;
  add_tight(report, hints);
  add_over(report, hints);
  add_fastest(report, hints);
  add_next_family(report, hints);
  add_switches(report, hints);
  for (Hint& hint : other_size_hints(report)) { hints.push_back(std::move(hint)); }
  return hints;
}

}  // namespace shardplan
