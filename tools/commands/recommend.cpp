#include "tools/commands/recommend.h"

#include <algorithm>
#include <tuple>

#include "search/walk/rank.h"

namespace shardplan {
namespace {

// How many things a plan does that one GPU of a plain run does not.
std::int64_t complexity(const Plan& plan) {
  const Plan plain;
  std::int64_t count = 0;
  for (const bool is_used :
       {plan.tp > 1, plan.pp > 1, plan.vpp > 1, plan.cp > 1, plan.ep > 1, plan.dp_replicate > 1,
        plan.recompute != plain.recompute, !plan.layers_per_chunk.empty(),
        plan.rank_order != plain.rank_order, plan.offload.optimizer > 0, plan.offload.parameters}) {
    count += is_used ? 1 : 0;
  }
  return count;
}

void add_simplest(SearchReport& report) {
  std::vector<RankedPlan>& top = report.result.top;
  RankedPlan simplest = report.simplest->ranked;
  simplest.tied_group = 1;
  const Family family = family_of(simplest.plan);
  std::erase_if(top, [&](const RankedPlan& ranked) {
    return ranked.plan == simplest.plan ||
           (report.options.distinct && family_of(ranked.plan) == family);
  });
  top.insert(top.begin(), std::move(simplest));
  if (std::ssize(top) > report.options.top) {
    top.pop_back();
  }
}

}  // namespace

void recommend(SearchReport& report, const Job& asked, const MeasuredRuns& runs) {
  if (report.simplest) {
    add_simplest(report);
  }
  const auto order = [&](const RankedPlan& ranked) {
    const bool is_beyond = !runs.cover(asked, ranked.plan);
    return std::tuple(ranked.tied_group, is_beyond, complexity(ranked.plan), ranked.time.total_s);
  };
  std::vector<std::pair<decltype(order(RankedPlan{})), RankedPlan>> ordered;
  for (RankedPlan& ranked : report.result.top) {
    const auto key = order(ranked);
    ordered.emplace_back(key, std::move(ranked));
  }
  std::ranges::stable_sort(
      ordered, [](const auto& one, const auto& other) { return one.first < other.first; });
  report.result.top.clear();
  for (auto& [key, ranked] : ordered) { report.result.top.push_back(std::move(ranked)); }
}

}  // namespace shardplan
