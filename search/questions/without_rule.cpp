#include "search/questions/without_rule.h"

namespace shardplan {
namespace {

constexpr double kWorthNaming = 1.005;  // times the speed

}  // namespace

SearchOptions without_rule(SearchOptions options) {
  options.memory_threshold = kCardAlone.threshold;
  options.basis = kCardAlone.basis;
  options.pareto = false;
  return options;
}

BeyondRule beyond_rule(const Job& job, const SearchSpace& space, const SearchOptions& options,
                       PriceTables& tables) {
  SearchOptions card = without_rule(options);
  BeyondRule beyond;
  beyond.over = search_plans(job, space, card, tables).top;
  if (!beyond.over.empty()) {
    beyond.verdict = MemoryVerdict::kOver;
    return beyond;
  }
  card.takes_tight = true;
  card.top = 1;
  if (!search_plans(job, space, card, tables).top.empty()) {
    beyond.verdict = MemoryVerdict::kTight;
  }
  return beyond;
}

std::optional<RankedPlan> faster_without_rule(const Job& job, const SearchSpace& space,
                                              const SearchOptions& options, const RankedPlan& first,
                                              PriceTables& tables) {
  SearchOptions card = without_rule(options);
  card.top = 1;
  card.progress = nullptr;
  card.least_tokens_per_s_per_gpu = kWorthNaming * first.time.tokens_per_s_per_gpu;
  SearchResult result = search_plans(job, space, card, tables);
  const bool is_faster = !result.top.empty() && result.top.front().time.tokens_per_s_per_gpu >=
                                                    card.least_tokens_per_s_per_gpu;
  return is_faster ? std::optional(std::move(result.top.front())) : std::nullopt;
}

}  // namespace shardplan
