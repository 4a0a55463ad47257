// A Plan as words: read from options, written as options, named axes of a search.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/plan/plan.h"
#include "search/walk/search.h"
#include "tools/options/options.h"

namespace shardplan {

// The integer fields of a plan that are axes of a search as well.
struct PlanSize {
  std::string_view name;  // as in case lines; the option writes '-' for '_'
  std::int64_t Plan::*field;
  std::vector<std::int64_t> SearchSpace::*axis;
};
inline constexpr std::array<PlanSize, 10> kPlanSizes = {{
    {.name = "tp", .field = &Plan::tp, .axis = &SearchSpace::tp},
    {.name = "pp", .field = &Plan::pp, .axis = &SearchSpace::pp},
    {.name = "vpp", .field = &Plan::vpp, .axis = &SearchSpace::vpp},
    {.name = "cp", .field = &Plan::cp, .axis = &SearchSpace::cp},
    {.name = "ep", .field = &Plan::ep, .axis = &SearchSpace::ep},
    {.name = "etp", .field = &Plan::etp, .axis = &SearchSpace::etp},
    {.name = "dp", .field = &Plan::dp, .axis = &SearchSpace::dp},
    {.name = "dp_replicate", .field = &Plan::dp_replicate, .axis = &SearchSpace::dp_replicate},
    {.name = "zero", .field = &Plan::zero, .axis = &SearchSpace::zero},
    {.name = "micro_batch", .field = &Plan::micro_batch, .axis = &SearchSpace::micro_batch},
}};

std::string option_name(std::string_view field);  // "dp_replicate" -> "dp-replicate"

// What the options say; all else as `base` has it. `given` receives the names of the fields set.
Plan plan_of(const Options& options, std::vector<std::string>& given, const Plan& base = {});

std::vector<std::string> plan_field_names();  // of every field that an option sets

// The options of `estimate` that make this plan of `base`: "--tp 8 --pp 2 ...". Fields that equal
// the base's are left out, except the sizes and what frameworks have defaults of their own for.
std::string options_of_plan(const Plan& plan, const Plan& base = {});

// `base` in a comparison that says etp wherever the model has experts: left out, it follows from tp
// and ep.
Plan with_open_etp(const Job& job, Plan base);

// Those of its options that the base does not have: "--tp 2 --sequence-parallel on".
std::string options_that_differ(const Plan& base, const Plan& plan);

std::string recompute_text(const Recompute& recompute);  // "full/uniform/1", "selective/core_attn"
std::string dimensions_text(const RankOrder& order);     // "pp-dp-cp-tp"
// Also with commas.
RankOrder parse_rank_order(const std::string& word, const std::string& place);

}  // namespace shardplan
