#include "tools/commands/simplest_plan.h"

#include <algorithm>
#include <array>

#include "search/walk/rank.h"
#include "tools/options/plan_words.h"

namespace shardplan {
namespace {

constexpr double kRounding = 1e-9;  // of a price against the estimate
constexpr std::string_view kRecompute = "recompute";
// Sizes go to 1, recomputation to none.
constexpr std::array<std::string_view, 6> kFields = {"vpp", "cp",       "dp_replicate",
                                                     "pp",  kRecompute, "tp"};

template <class Value>
bool fix_at(std::vector<Value>& axis, const Value& value) {
  const bool has_it = std::ranges::find(axis, value) != axis.end();
  axis = {value};
  return has_it;
}

// Leaves the space what is simplest; false where the plan is that already or the space lacks it.
bool simplify(std::string_view field, const Plan& plan, SearchSpace& space) {
  if (field == kRecompute) {
    return plan.recompute != Recompute{} && fix_at(space.recompute, Recompute{});
  }
  const PlanSize& size = *std::ranges::find(kPlanSizes, field, &PlanSize::name);
  return plan.*size.field != 1 && fix_at(space.*size.axis, std::int64_t{1});
}

}  // namespace

std::optional<SimplerPlan> simplest_tied(const Job& job, SearchSpace space, SearchOptions options,
                                         const RankedPlan& first, PriceTables& prices) {
  options.top = 1;
  options.pareto = false;
  options.progress = nullptr;
  const double least_speed = (1 - kSpeedUncertainty) * first.time.tokens_per_s_per_gpu;
  options.least_tokens_per_s_per_gpu = (1 - kRounding) * least_speed;
  SimplerPlan simplest = {.fixes = {}, .ranked = first};
  for (std::size_t kept = 1; kept > 0;) {  // what an axis gives up another may take up
    kept = simplest.fixes.size();
    for (const std::string_view field : kFields) {
      SearchSpace part = space;
      if (!simplify(field, simplest.ranked.plan, part)) {
        continue;
      }
      SearchResult result = search_plans(job, part, options, prices);
      if (!result.top.empty() && result.top.front().time.tokens_per_s_per_gpu >= least_speed) {
        space = part;
        simplest.fixes.push_back(std::string(field) + (field == kRecompute ? "=none" : "=1"));
        simplest.ranked = std::move(result.top.front());
      }
    }
    kept = simplest.fixes.size() - kept;
  }
  return simplest.fixes.empty() ? std::nullopt : std::optional(simplest);
}

}  // namespace shardplan
