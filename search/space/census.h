// How many plans of a space break each rule first, how many an earlier plan stands for, and how
// many are left, counted without visiting them one by one.
//
// The axes are chosen one after another. A rule is settled with the last axis that it reads. Once
// no rule that could still come first reads an open axis, all plans below share one verdict and the
// sizes of the open axes are multiplied. What an unsettled rule will say of the open axes is its
// remainder; prefixes whose rules have the same remainders share one count. The verdict is that of
// the one-plan functions: the first rule of the profile's table that the plan breaks, else the
// first equivalence.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "search/space/rules.h"
#include "search/space/space.h"

namespace shardplan {

// Verdicts by number: the profile's validity rules in their order, then the equivalence rules, then
// one for plans that are valid and unlike all before them.
using Verdict = std::int32_t;

// Values of the first `depth` axes. Axes of one value are always chosen; the plan's fields of the
// others from `depth` on mean nothing.
struct Prefix {
  std::size_t depth = 0;
  std::array<std::int64_t, kNumAxes> values{};
  std::int64_t index = 0;  // of the first plan below it
  Plan plan;
};

// Plans for which an earlier one stands are left out, or left in as if they were unlike it.
enum class Twins { kOut, kIn };

// The rules of a job in the order in which a walk along the axes settles them.
class SettledRules {
 public:
  SettledRules(const Job& job, const PlanSpace& space, Twins twins = Twins::kOut);

  const PlanSpace& space() const { return *space_; }
  Verdict num_rules() const { return num_rules_; }
  Verdict distinct() const { return distinct_; }  // valid and unlike all before
  std::int64_t size(std::size_t axis) const { return sizes_[axis]; }
  // The first axis from the depth on that has several values; kNumAxes if there is none.
  std::size_t next_axis(std::size_t depth) const { return next_axis_[depth]; }
  // Plans below one prefix of this depth.
  std::int64_t plans_below(std::size_t depth) const { return strides_[depth]; }

  // No axis chosen, and the verdict of the rules that are settled by axes of one value.
  const Prefix& root() const { return root_; }
  Verdict root_verdict() const { return root_verdict_; }
  Prefix prefix_at(std::int64_t index, std::size_t depth) const;
  // Chooses a value of an axis, at or behind the prefix's depth.
  void choose(std::size_t axis, std::int64_t value, Prefix& prefix) const;
  // The verdict after this axis was chosen, `verdict` being the one before.
  Verdict settle(std::size_t axis, const Prefix& prefix, Verdict verdict) const;

  // A rule that reads several axes of several values, by number; in the order of the verdicts.
  struct Check {
    Verdict verdict = 0;
    const ValidityRule* rule = nullptr;  // or
    const EquivalenceRule* equivalence = nullptr;
    RuleList twin_rules = {};
    std::uint32_t axes = 0;
    std::vector<std::size_t> relies_on = {};  // earlier checks that read nothing else
  };
  const std::vector<Check>& checks() const { return checks_; }
  // Whether the check breaks a plan that breaks nothing that the check may rely on; the axes that
  // it reads are chosen.
  bool breaks_first(const Check& check, const Prefix& prefix) const;
  // Axes from the depth on whose own values break rules that come before the verdict.
  std::uint32_t deciding_alone(std::size_t depth, Verdict verdict) const {
    return deciding_alone_[depth][static_cast<std::size_t>(verdict)];
  }

 private:
  void add(Check check, PlanFields reads);
  void add_alone(const Check& check);
  void list_deciding_alone();
  bool breaks(const Check& check, const Plan& plan) const;

  const Job* job_;
  const PlanSpace* space_;
  Verdict num_rules_ = 0;
  Verdict distinct_ = 0;
  Prefix root_;
  Verdict root_verdict_ = 0;
  std::array<std::int64_t, kNumAxes> sizes_{};
  std::array<std::int64_t, kNumAxes + 1> strides_{};
  std::array<std::size_t, kNumAxes + 1> next_axis_{};
  std::uint32_t several_ = 0;  // axes of several values
  std::vector<Check> checks_;
  std::array<std::vector<std::size_t>, kNumAxes> settled_by_;  // checks, by the last axis they read
  std::array<std::vector<Verdict>, kNumAxes> alone_;  // by value: rules that read one axis only
  std::array<std::vector<std::uint32_t>, kNumAxes + 1> deciding_alone_;
};

using Counts = std::vector<std::int64_t>;  // plans by verdict

// Counts below prefixes; remembers what it has counted. One per thread.
class Census {
 public:
  explicit Census(const SettledRules& rules);
  // Adds the plans below the prefix.
  void count(Prefix prefix, Verdict verdict, Counts& counts);
  // Plans below a prefix without broken rule that are valid and unlike all before them.
  std::int64_t distinct_below(const Prefix& prefix);

 private:
  // What a check will say of the axes open at a depth, numbered by what it says; 0: nothing.
  struct Remainders {
    std::uint32_t open = 0;             // axes that it reads, from the depth on
    std::uint32_t chosen = 0;           // and before
    std::vector<std::int32_t> numbers;  // by the values of the chosen axes; -1: not known yet
    std::map<std::vector<bool>, std::int32_t> known;
  };
  using Key = std::vector<std::int32_t>;
  struct KeyHash {
    using is_transparent = void;
    std::size_t operator()(std::span<const std::int32_t> key) const;
  };
  struct KeyEqual {
    using is_transparent = void;
    bool operator()(std::span<const std::int32_t> one, std::span<const std::int32_t> other) const;
  };
  struct Entry {
    Verdict verdict = 0;
    std::int64_t plans = 0;
  };
  std::int32_t remainder(std::size_t check, const Prefix& prefix);
  std::int32_t new_remainder(const SettledRules::Check& check, Remainders& of,
                             const Prefix& prefix) const;
  void say(const SettledRules::Check& check, std::uint32_t open, Prefix& prefix,
           std::vector<bool>& says) const;
  void count_values(Prefix& prefix, std::size_t axis, Verdict verdict, std::int64_t times,
                    Counts& counts);
  void count_below(Prefix& prefix, Verdict verdict, std::int64_t times, Counts& counts);

  const SettledRules* rules_;
  std::vector<std::array<Remainders, kNumAxes + 1>> remainders_;  // by check and depth
  std::unordered_map<Key, std::vector<Entry>, KeyHash, KeyEqual> counted_;
};

}  // namespace shardplan
