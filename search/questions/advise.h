// Small changes of a plan that make it fit, or faster: single ones first, then pairs. Every change
// that is offered has been estimated in full.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "search/walk/search.h"

namespace shardplan {

// One change: a field of the plan at another value, or a switch of the framework. What must follow
// (dp, a schedule that suits pp and vpp, sequence parallelism without tp) follows.
struct PlanEdit {
  std::string field;  // edits of one field are never paired
  std::function<void(Job& job, Plan& plan)> apply;
  bool is_next = true;  // only values beside the plan's own are paired
};

// What a change must do for a plan that fits already.
enum class AdviceGoal { kFaster, kLessMemory };

enum class FitRule {
  kVerdict,  // the run lives, if need be on memory that its allocator gives back
  kShare,    // besides it keeps a share of the capacity: threshold and basis of the options
};

struct AdviceOptions {
  AdviceGoal goal = AdviceGoal::kFaster;
  FitRule rule = FitRule::kVerdict;
  SearchOptions share = {};  // memory_threshold, basis, threads
  std::int64_t top = 10;     // of single changes, and of pairs
};

// A plan with its full estimate.
struct JudgedPlan {
  Job job;
  Plan plan;
  MemoryEstimate memory;
  StepTime time;
  bool fits = false;
};

struct Advice {
  std::vector<std::size_t> edits;  // indices into the edits tried: one or two
  JudgedPlan changed;
  std::int64_t freed_bytes = 0;  // of the basis, fullest stage; negative: needs more. 0: no base
  double speed_ratio = 0;        // tokens/s over the plan's own; 0: the plan is invalid
};

// No list says twice what one change, or two of the same fields, do.
struct AdviceResult {
  bool base_valid = false;
  JudgedPlan base;              // estimated if valid
  std::vector<Advice> singles;  // that help: fit and, if the plan itself fits, reach the goal.
                                // Fastest first; ties by bytes freed
  std::vector<Advice> pairs;    // that help and are at least 1 % faster than every single change
  std::vector<Advice> nearest;  // where nothing fits: those that free most, if any, of both
  std::int64_t singles_tried = 0;
  std::int64_t singles_invalid = 0;
  std::int64_t pairs_tried = 0;
  std::int64_t pairs_invalid = 0;
};

// Pairs are priced; only those that price lets hope are estimated.
AdviceResult advise(const Job& job, const Plan& plan, const std::vector<PlanEdit>& edits,
                    const AdviceOptions& options);

}  // namespace shardplan
