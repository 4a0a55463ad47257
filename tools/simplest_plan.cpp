#include "tools/simplest_plan.h"

#include <algorithm>
#include <array>

#include "search/rank.h"

namespace shardplan {
namespace {

// What a plan without it has, where the space has that, too.
struct Simplification {
  const char* fix;
  bool (*is_plain)(const Plan& plan);
  bool (*apply)(SearchSpace& space);  // false: the space does not have it
};

bool fix_at_one(std::vector<std::int64_t>& axis) {
  const bool has_one = std::ranges::find(axis, 1) != axis.end();
  axis = {1};
  return has_one;
}

constexpr std::array<Simplification, 6> kSimplifications = {{
    {.fix = "vpp=1",
     .is_plain = [](const Plan& plan) { return plan.vpp == 1; },
     .apply = [](SearchSpace& space) { return fix_at_one(space.vpp); }},
    {.fix = "cp=1",
     .is_plain = [](const Plan& plan) { return plan.cp == 1; },
     .apply = [](SearchSpace& space) { return fix_at_one(space.cp); }},
    {.fix = "dp_replicate=1",
     .is_plain = [](const Plan& plan) { return plan.dp_replicate == 1; },
     .apply = [](SearchSpace& space) { return fix_at_one(space.dp_replicate); }},
    {.fix = "pp=1",
     .is_plain = [](const Plan& plan) { return plan.pp == 1; },
     .apply = [](SearchSpace& space) { return fix_at_one(space.pp); }},
    {.fix = "recompute=none",
     .is_plain = [](const Plan& plan) { return plan.recompute == Recompute{}; },
     .apply =
         [](SearchSpace& space) {
           const bool has_none =
               std::ranges::find(space.recompute, Recompute{}) != space.recompute.end();
           space.recompute = {Recompute{}};
           return has_none;
         }},
    {.fix = "tp=1",
     .is_plain = [](const Plan& plan) { return plan.tp == 1; },
     .apply = [](SearchSpace& space) { return fix_at_one(space.tp); }},
}};

}  // namespace

std::optional<SimplerPlan> simplest_tied(const Job& job, SearchSpace space, SearchOptions options,
                                         const RankedPlan& first) {
  options.top = 1;
  options.pareto = false;
  options.progress = nullptr;
  const double least_speed = (1 - kSpeedUncertainty) * first.time.tokens_per_s_per_gpu;
  SimplerPlan simplest = {.fixes = {}, .ranked = first};
  for (std::size_t kept = 1; kept > 0;) {  // what an axis gives up another may take up
    kept = simplest.fixes.size();
    for (const Simplification& simpler : kSimplifications) {
      SearchSpace part = space;
      if (simpler.is_plain(simplest.ranked.plan) || !simpler.apply(part)) {
        continue;
      }
      SearchResult result = search_plans(job, part, options);
      if (!result.top.empty() && result.top.front().time.tokens_per_s_per_gpu >= least_speed) {
        space = part;
        simplest.fixes.emplace_back(simpler.fix);
        simplest.ranked = std::move(result.top.front());
      }
    }
    kept = simplest.fixes.size() - kept;
  }
  return simplest.fixes.empty() ? std::nullopt : std::optional(simplest);
}

}  // namespace shardplan
