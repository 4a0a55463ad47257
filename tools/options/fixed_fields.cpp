#include "tools/options/fixed_fields.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "tools/options/plan_words.h"
#include "tools/options/search_axes.h"
#include "tools/options/words.h"

namespace shardplan {
namespace {

constexpr std::string_view kRecompute = "recompute";
constexpr std::string_view kOffload = "offload";

// The axis of a field: several fields are parts of recompute and of offload.
std::string axis_of_field(const std::string& field) {
  for (const std::string_view axis : {kRecompute, kOffload}) {
    if (field.starts_with(axis)) {
      return std::string(axis);
    }
  }
  return field;
}

// A granularity alone leaves all its variants.
bool is_bare_recompute(const Options& options) {
  return given(options, "recompute") &&
         std::ranges::none_of(std::vector<const char*>{"recompute-method", "recompute-num-layers",
                                                       "recompute-modules", "recompute-policy"},
                              [&](const char* name) { return given(options, name); });
}

void fix_field(const std::string& axis, const Plan& plan, SearchSpace& space) {
  for (const PlanSize& size : kPlanSizes) {
    if (size.name == axis) {
      space.*size.axis = {plan.*size.field};
    }
  }
  const auto set = [&](std::string_view name, auto& values, const auto& value) {
    if (axis == name) {
      values = {value};
    }
  };
  set("sequence_parallel", space.sequence_parallel, plan.sequence_parallel);
  set("schedule", space.schedule, plan.schedule);
  set("cp_method", space.cp_method, plan.cp_method);
  set("precision", space.precision, plan.precision);
  set("grad_dtype", space.grad_dtype, plan.grad_dtype);
  set("master_dtype", space.master_dtype, plan.master_dtype);
  set("exp_avg_dtype", space.exp_avg_dtype, plan.exp_avg_dtype);
  set("exp_avg_sq_dtype", space.exp_avg_sq_dtype, plan.exp_avg_sq_dtype);
  set("rank_order", space.rank_order, plan.rank_order);
  set("moe_buffer_factor", space.moe_buffer_factor, plan.moe_buffer_factor);
  set(kRecompute, space.recompute, plan.recompute);
  set(kOffload, space.offload, plan.offload);
}

}  // namespace

void fix_given_fields(const Options& options, SearchSpace& space, std::set<std::string>& named) {
  std::vector<std::string> fields;
  const Plan plan = plan_of(options, fields);
  for (const std::string& field : fields) {
    const std::string axis = axis_of_field(field);
    named.insert(axis);
    if (axis == kRecompute && is_bare_recompute(options)) {
      fix_axis(space, "recompute=" + text_or(options, "recompute", ""));
    } else {
      fix_field(axis, plan, space);
    }
  }
}

}  // namespace shardplan
