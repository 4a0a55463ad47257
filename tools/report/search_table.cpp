#include "tools/report/search_table.h"

#include <algorithm>
#include <array>

#include "data/read/json_message.h"
#include "estimator/plan/rank_grid.h"
#include "estimator/plan/units.h"
#include "search/walk/rank.h"
#include "tools/options/plan_words.h"
#include "tools/options/words.h"
#include "tools/report/lines.h"
#include "tools/report/report.h"
#include "tools/report/step.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

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
    notes.push_back("layers " + std::to_string(plan.layers_per_chunk.front()) + " first, " +
                    std::to_string(plan.layers_per_chunk.back()) + " last");
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

void add_plan_cells(const Job& job, const RankedPlan& ranked, std::vector<Cell>& row) {
  for (const PlanSize& size : kPlanSizes) {
    row.emplace_back(size.name == "dp" ? data_parallel_size(job, ranked.plan)
                                       : ranked.plan.*size.field);
  }
  row.emplace_back(std::string(ranked.plan.sequence_parallel ? "on" : "off"));
  row.emplace_back(std::string(name_of(ranked.plan.schedule)));
  row.emplace_back(recompute_text(ranked.plan.recompute));
  row.emplace_back(notes_of(ranked));
}

std::string ranked_table(const SearchReport& report) {
  Table table = {
      .columns = {"rank", "tie", "tokens/s/GPU", "step s", "MFU", "allocated", "device used"}};
  for (const PlanSize& size : kPlanSizes) {
    table.columns.push_back(size.name == "dp_replicate"  ? "rep"
                            : size.name == "micro_batch" ? "mbs"
                                                         : std::string(size.name));
  }
  for (const char* name : {"sp", "schedule", "recompute", "notes"}) {
    table.columns.push_back(name);
  }
  std::int64_t rank = 0;
  for (const RankedPlan& ranked : report.result.top) {
    std::vector<Cell> row = {++rank,
                             ranked.tied_group,
                             whole(ranked.time.tokens_per_s_per_gpu),
                             fixed(ranked.time.total_s, 3),
                             percent(ranked.time.mfu),
                             gib(basis_bytes(ranked.memory, MemoryBasis::kAllocated)),
                             gib(basis_bytes(ranked.memory, MemoryBasis::kDeviceUsed))};
    add_plan_cells(report.job, ranked, row);
    table.rows.push_back(std::move(row));
  }
  return table_text(table);
}

// The front, thinned to a screen: both ends and plans evenly between them.
std::string pareto_table(const SearchReport& report) {
  constexpr std::size_t kMostRows = 20;
  const std::vector<ParetoPoint>& points = report.result.pareto;
  const std::size_t rows = std::min(points.size(), kMostRows);
  Table table = {.columns = {"allocated", "tokens/s/GPU", "step s"}};
  for (const PlanSize& size : kPlanSizes) { table.columns.push_back(std::string(size.name)); }
  for (const char* name : {"sp", "schedule", "recompute", "notes"}) {
    table.columns.push_back(name);
  }
  for (std::size_t at = 0; at < rows; ++at) {
    const std::size_t point = rows < 2 ? 0 : at * (points.size() - 1) / (rows - 1);
    const RankedPlan ranked = {
        .plan = points[point].plan, .price = points[point].price, .memory = {}, .time = {}};
    std::vector<Cell> row = {gib(ranked.price.allocated_bytes),
                             whole(ranked.price.tokens_per_s_per_gpu),
                             fixed(ranked.price.step_time_s, 3)};
    add_plan_cells(report.job, ranked, row);
    table.rows.push_back(std::move(row));
  }
  return "\nNo plan that fits is as fast with less memory (" + grouped(std::ssize(points)) +
         " plans" + (rows < points.size() ? ", " + std::to_string(rows) + " shown" : "") + ")\n" +
         table_text(table);
}

std::string pruned_table(const SearchResult& result) {
  Table table = {.columns = {"plans", "pruned by"}};
  for (const RuleCount& count : result.pruned) { table.rows.push_back({count.plans, count.rule}); }
  return table_text(table);
}

struct NamedGroup {
  std::string_view name;
  GroupKind kind;
};
constexpr std::array<NamedGroup, 6> kNamedGroups = {{
    {.name = "tp", .kind = GroupKind::kTp},
    {.name = "cp", .kind = GroupKind::kCp},
    {.name = "etp", .kind = GroupKind::kEtp},
    {.name = "ep", .kind = GroupKind::kEp},
    {.name = "pp", .kind = GroupKind::kPp},
    {.name = "dp", .kind = GroupKind::kDp},
}};

// What each group of ranks reaches over: "tp 8 in a node, cp 2 over 2 nodes".
std::string groups_text(const Job& job, const Plan& plan) {
  std::vector<std::string> groups;
  for (const NamedGroup& group : kNamedGroups) {
    const GroupShape shape = group_shape(job, plan, group.kind);
    const std::int64_t nodes = div_exact(shape.size, shape.ranks_per_node);
    if (shape.size > 1) {
      groups.push_back(std::string(group.name) + " " + grouped(shape.size) +
                       (nodes == 1 ? " in a node" : " over " + grouped(nodes) + " nodes") +
                       (nodes > 1 && shape.ranks_per_domain == shape.size ? " by NVLink" : ""));
    }
  }
  return joined(groups);
}

std::string sizes_text(const Job& job, const Plan& plan) {
  std::string text = "tp " + std::to_string(plan.tp) + " cp " + std::to_string(plan.cp);
  if (job.model.moe.num_experts > 0) {
    text += " ep " + std::to_string(plan.ep) + " etp " + std::to_string(plan.etp);
  }
  return text + " pp " + std::to_string(plan.pp) + " zero " + std::to_string(plan.zero);
}

// How much slower the best plan of other sizes is, if any is shown.
std::string next_family_line(const SearchReport& report) {
  const SearchResult& result = report.result;
  const RankedPlan& best = result.top.front();
  const auto next = std::ranges::find_if(result.top, [&](const RankedPlan& ranked) {
    return family_of(ranked.plan) != family_of(best.plan);
  });
  if (next == result.top.end()) {
    return "";
  }
  const double slower = 1 - next->time.tokens_per_s_per_gpu / best.time.tokens_per_s_per_gpu;
  return label_line("next sizes", sizes_text(report.job, next->plan) + ", rank " +
                                      std::to_string(next - result.top.begin() + 1) + ": " +
                                      percent(slower) + " slower");
}

// A first plan that lives on memory that its allocator gives back, and the first that does not.
std::string tight_line(const SearchReport& report) {
  const std::vector<RankedPlan>& top = report.result.top;
  const RankedPlan& best = top.front();
  if (best.memory.fit != Fit::kTight) {
    return "";
  }
  const auto roomy = std::ranges::find_if(
      top, [](const RankedPlan& ranked) { return ranked.memory.fit == Fit::kFits; });
  const std::string without =
      roomy == top.end()
          ? "none shown runs without"
          : "rank " + std::to_string(roomy - top.begin() + 1) + " runs without, " +
                percent(1 - roomy->time.tokens_per_s_per_gpu / best.time.tokens_per_s_per_gpu) +
                " slower";
  return label_line("tight", "device used " +
                                 gib(basis_bytes(best.memory, MemoryBasis::kDeviceUsed)) + " of " +
                                 gib(card_bytes(report.job)) +
                                 " GiB: it must give cached memory back to run; " + without);
}

std::string simplest_line(const SearchReport& report) {
  if (!report.simplest) {
    return "";
  }
  const RankedPlan& plain = report.simplest->ranked;
  const double slower =
      1 - plain.time.tokens_per_s_per_gpu / report.result.top.front().time.tokens_per_s_per_gpu;
  std::string text;
  for (const std::string& fix : report.simplest->fixes) { text += "--fix " + fix + " "; }
  text.back() = ':';
  return label_line("simplest tie", text + " " + sizes_text(report.job, plain.plan) + ", " +
                                        percent(slower) +
                                        " slower, closer than the model can tell");
}

std::string switches_line(const SearchReport& report) {
  if (!report.switches) {
    return "";
  }
  const double step_s = report.result.top.front().time.total_s;
  return label_line("faster with",
                    joined(report.switches->options) + ": " +
                        fixed(report.switches->step_time_s, 3) + " s, " +
                        percent(step_s / report.switches->step_time_s - 1) + " more tokens/s; " +
                        (report.run ? "--set" : "--framework-option") + " ranks all plans so");
}

// What else could be asked: "--num-gpus 64: 9,120 tokens/s per GPU, 584 thousand of all".
std::string other_size_lines(const SearchReport& report) {
  std::string text;
  const double own = report.result.top.empty()
                         ? 0
                         : report.result.top.front().time.tokens_per_s_per_gpu *
                               static_cast<double>(report.job.cluster.world_size());
  for (const OtherSize& size : report.other_sizes) {
    const std::int64_t world = report.job.cluster.world_size();
    const char* const label = size.global_batch != report.job.global_batch ? "larger batch"
                              : size.num_gpus < world                      ? "fewer GPUs"
                              : size.num_gpus > world                      ? "more GPUs"
                                                                           : "offload";
    text += label_line(
        label, size.option + ": " + whole(size.tokens_per_s_per_gpu) + " tokens/s per GPU, " +
                   whole(size.tokens_per_s) + " of all" +
                   (own > 0 ? ", " + percent(size.tokens_per_s / own) + " of those here" : ""));
  }
  return text;
}

std::string first_plan_lines(const SearchReport& report) {
  const RankedPlan& best = report.result.top.front();
  std::string text = "\nThe first plan\n" + batch_line(report.job, best.plan);
  if (report.job.cluster.nodes > 1) {
    text += label_line("groups", groups_text(report.job, best.plan));
  }
  return text + time_lines(best.time, best.plan.precision) + tight_line(report) +
         simplest_line(report) + next_family_line(report) + switches_line(report) +
         other_size_lines(report);
}

// Only where it says something: some plans shown are as fast as each other.
std::string tie_line(const SearchResult& result) {
  if (result.top.back().tied_group == std::ssize(result.top)) {
    return "";
  }
  return "tie: plans of one number are within " + percent(kSpeedUncertainty) +
         " of its fastest, closer than the model can tell; --distinct shows one per family\n";
}

bool has_fp8_plans(const SearchResult& result) {
  return std::ranges::any_of(result.top, [](const RankedPlan& ranked) {
    return ranked.plan.precision == Precision::kFp8;
  });
}

std::string nothing_fits(const SearchReport& report, const Paint& paint) {
  const SearchResult& result = report.result;
  std::string text = paint(Colour::kRed, "NOTHING FITS");
  if (result.plans_distinct == 0) {
    return text + "  no plan of this space is valid; the rules below say why\n" +
           (report.reason.empty() ? "" : label_line("nearest", one_line(report.reason))) +
           other_size_lines(report);
  }
  return text + "  the smallest valid plan allocates " +
         gib(result.smallest_price.allocated_bytes) + " GiB, at most " +
         gib(result.smallest_price.device_used_bytes) + " GiB on the device; the limit is " +
         gib(memory_limit_bytes(report.job.cluster, report.options)) + " GiB, " +
         limit_text(report.job.cluster, report.options) + "; the card has " +
         gib(card_bytes(report.job)) + " GiB\n" +
         label_line("", report.command_of(result.smallest)) + other_size_lines(report);
}

}  // namespace

std::string search_text(const SearchReport& report, const Paint& paint) {
  const SearchResult& result = report.result;
  std::string text =
      job_lines(report.job) +
      label_line("batch", grouped(report.job.global_batch) + " sequences of " +
                              grouped(report.job.sequence_length) + " tokens per step") +
      label_line("rule", std::string(name_of(report.options.basis)) +
                             " <= " + gib(memory_limit_bytes(report.job.cluster, report.options)) +
                             " GiB, " + limit_text(report.job.cluster, report.options)) +
      "\n";
  if (result.top.empty()) {
    text += nothing_fits(report, paint);
  } else {
    text +=
        std::string("Fastest plans, memory in GiB") +
        (result.top.front().time.calibrated ? "\n" : ", times uncalibrated\n") +
        ranked_table(report) + tie_line(result) + mfu_note(has_fp8_plans(result)) +
        first_plan_lines(report) + "\nIn full: " + report.command_of(result.top.front().plan) +
        "\n" +
        list_lines("Evidence for the first plan",
                   report.evidence ? evidence_lines(*report.evidence) : std::vector<std::string>{});
  }
  if (!result.pareto.empty()) {
    text += pareto_table(report);
  }
  return text + "\n" + grouped(result.plans_in_space) + " plans in the space, " +
         grouped(result.plans_priced) + " priced, " + grouped(result.plans_fitting) +
         " of them fit\n" + pruned_table(result);
}

}  // namespace shardplan
