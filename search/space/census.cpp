#include "search/space/census.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "estimator/estimate.h"

namespace shardplan {

namespace {

// Then all is forgotten and counted again: bounds what a census holds.
constexpr std::size_t kMaxCounted = std::size_t{1} << 16;
// Until so many axes are chosen (the sizes that cut the model) prefixes hardly share anything.
constexpr std::size_t kFirstShared = 5;
constexpr std::size_t kMaxChecks = 48;

constexpr std::uint32_t bit(std::size_t axis) {
  return std::uint32_t{1} << axis;
}

constexpr std::uint32_t axes_from(std::size_t depth) {
  return ~(bit(depth) - 1);
}

std::uint32_t axes_of(PlanFields fields) {
  std::uint32_t axes = 0;
  for (std::size_t axis = 0; axis < kNumAxes; ++axis) {
    axes |= kAxes[axis].fields.meets(fields) ? bit(axis) : 0;
  }
  return axes;
}

std::size_t last_axis(std::uint32_t axes) {
  return static_cast<std::size_t>(std::bit_width(axes)) - 1;
}

std::size_t at(Verdict verdict) {
  return static_cast<std::size_t>(verdict);
}

}  // namespace

SettledRules::SettledRules(const Job& job, const PlanSpace& space, Twins twins)
    : job_(&job), space_(&space) {
  const std::span<const ValidityRule> rules = validity_rules(job.profile);
  const std::span<const EquivalenceRule> equivalences =
      twins == Twins::kOut ? equivalence_rules() : std::span<const EquivalenceRule>();
  num_rules_ = static_cast<Verdict>(rules.size());
  distinct_ = num_rules_ + static_cast<Verdict>(equivalences.size());
  root_verdict_ = distinct_;
  strides_[kNumAxes] = 1;
  next_axis_[kNumAxes] = kNumAxes;
  for (std::size_t axis = kNumAxes; axis-- > 0;) {
    sizes_[axis] = kAxes[axis].size(space);
    strides_[axis] = strides_[axis + 1] * sizes_[axis];
    next_axis_[axis] = sizes_[axis] == 1 ? next_axis_[axis + 1] : axis;
    several_ |= sizes_[axis] == 1 ? 0 : bit(axis);
    alone_[axis].assign(static_cast<std::size_t>(sizes_[axis]), distinct_);
    if (sizes_[axis] == 1) {
      kAxes[axis].choose(space, 0, root_.plan);
    }
  }
  for (Verdict verdict = 0; verdict < num_rules_; ++verdict) {
    const ValidityRule& rule = rules[at(verdict)];
    add({.verdict = verdict, .rule = &rule}, rule.reads);
  }
  for (Verdict verdict = num_rules_; verdict < distinct_; ++verdict) {
    const EquivalenceRule& rule = equivalences[at(verdict - num_rules_)];
    Check check = {
        .verdict = verdict, .equivalence = &rule, .twin_rules = rules_that_read(job, rule.axis)};
    PlanFields reads = rule.reads;
    for (const ValidityRule* other : check.twin_rules) { reads = reads.joined(other->reads); }
    add(std::move(check), reads);
  }
  list_deciding_alone();
}

// Rules are added in their order. One that comes after a broken one is not asked: it may rely on
// what that one refuses.
void SettledRules::add(Check check, PlanFields reads) {
  if (root_verdict_ != distinct_) {
    return;
  }
  check.axes = axes_of(reads) & several_;
  const bool field_by_field = check.rule != nullptr && check.rule->field_by_field;
  if ((check.axes == 0 || field_by_field) && breaks(check, root_.plan)) {
    root_verdict_ = check.verdict;
  } else if (field_by_field || std::popcount(check.axes) == 1) {
    add_alone(check);
  } else if (check.axes != 0) {
    for (std::size_t earlier = 0; earlier < checks_.size(); ++earlier) {
      if ((checks_[earlier].axes & ~check.axes) == 0) {
        check.relies_on.push_back(earlier);
      }
    }
    settled_by_[last_axis(check.axes)].push_back(checks_.size());
    checks_.push_back(std::move(check));
  }
}

// Every value of an axis that decides alone has its verdict before the walk.
void SettledRules::add_alone(const Check& check) {
  for (std::size_t axis = 0; axis < kNumAxes; ++axis) {
    for (std::int64_t value = 0; (check.axes & bit(axis)) != 0 && value < sizes_[axis]; ++value) {
      Verdict& verdict = alone_[axis][static_cast<std::size_t>(value)];
      Prefix prefix = root_;
      choose(axis, value, prefix);
      if (verdict == distinct_ && breaks(check, prefix.plan)) {
        verdict = check.verdict;
      }
    }
  }
}

bool SettledRules::breaks(const Check& check, const Plan& plan) const {
  return check.rule != nullptr
             ? check.rule->broken(*job_, plan)
             : check.equivalence->earlier_twin(*job_, space_->values, plan, check.twin_rules)
                   .has_value();
}

void SettledRules::list_deciding_alone() {
  for (std::size_t depth = 0; depth <= kNumAxes; ++depth) {
    deciding_alone_[depth].assign(at(distinct_) + 1, 0);
    for (Verdict verdict = 0; verdict <= distinct_; ++verdict) {
      for (std::size_t axis = depth; axis < kNumAxes; ++axis) {
        if (std::ranges::any_of(alone_[axis], [&](Verdict alone) { return alone < verdict; })) {
          deciding_alone_[depth][at(verdict)] |= bit(axis);
        }
      }
    }
  }
}

void SettledRules::choose(std::size_t axis, std::int64_t value, Prefix& prefix) const {
  prefix.index += value * strides_[axis + 1];
  prefix.values[axis] = value;
  prefix.depth = axis + 1;
  kAxes[axis].choose(*space_, static_cast<std::size_t>(value), prefix.plan);
}

Prefix SettledRules::prefix_at(std::int64_t index, std::size_t depth) const {
  Prefix prefix = root_;
  for (std::size_t axis = next_axis_[0]; axis < depth; axis = next_axis_[axis + 1]) {
    choose(axis, index / strides_[axis + 1] % sizes_[axis], prefix);
  }
  prefix.depth = depth;
  return prefix;
}

Verdict SettledRules::settle(std::size_t axis, const Prefix& prefix, Verdict verdict) const {
  verdict = std::min(verdict, alone_[axis][static_cast<std::size_t>(prefix.values[axis])]);
  for (const std::size_t check : settled_by_[axis]) {
    if (checks_[check].verdict >= verdict) {
      return verdict;
    }
    if (breaks(checks_[check], prefix.plan)) {
      return checks_[check].verdict;
    }
  }
  return verdict;
}

bool SettledRules::breaks_first(const Check& check, const Prefix& prefix) const {
  for (std::uint32_t axes = check.axes; axes != 0; axes &= axes - 1) {
    const std::size_t axis = static_cast<std::size_t>(std::countr_zero(axes));
    if (alone_[axis][static_cast<std::size_t>(prefix.values[axis])] < check.verdict) {
      return false;
    }
  }
  return std::ranges::none_of(
             check.relies_on,
             [&](std::size_t earlier) { return breaks(checks_[earlier], prefix.plan); }) &&
         breaks(check, prefix.plan);
}

std::size_t Census::KeyHash::operator()(std::span<const std::int32_t> key) const {
  std::uint64_t hash = 0xcbf29ce484222325;  // as FNV-1a, by whole numbers
  for (const std::int32_t number : key) {
    hash = (hash ^ static_cast<std::uint32_t>(number)) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  return static_cast<std::size_t>(hash);
}

bool Census::KeyEqual::operator()(std::span<const std::int32_t> one,
                                  std::span<const std::int32_t> other) const {
  return std::ranges::equal(one, other);
}

Census::Census(const SettledRules& rules) : rules_(&rules), remainders_(rules.checks().size()) {
  if (remainders_.size() > kMaxChecks) {
    throw std::logic_error("Census: more rules than its keys have room for");
  }
  for (std::size_t check = 0; check < remainders_.size(); ++check) {
    for (std::size_t depth = kFirstShared; depth < kNumAxes; ++depth) {
      Remainders& of = remainders_[check][depth];
      of.open = rules.checks()[check].axes & axes_from(depth);
      of.chosen = rules.checks()[check].axes & ~axes_from(depth);
    }
  }
}

// What the check says of every combination of the open axes' values.
void Census::say(const SettledRules::Check& check, std::uint32_t open, Prefix& prefix,
                 std::vector<bool>& says) const {
  if (open == 0) {
    says.push_back(rules_->breaks_first(check, prefix));
    return;
  }
  const std::size_t axis = static_cast<std::size_t>(std::countr_zero(open));
  for (std::int64_t value = 0; value < rules_->size(axis); ++value) {
    rules_->choose(axis, value, prefix);
    say(check, open & (open - 1), prefix, says);
  }
}

std::int32_t Census::new_remainder(const SettledRules::Check& check, Remainders& of,
                                   const Prefix& prefix) const {
  std::vector<bool> says;
  Prefix below = prefix;
  say(check, of.open, below, says);
  if (std::ranges::find(says, true) == says.end()) {
    return 0;
  }
  const std::int32_t next = static_cast<std::int32_t>(of.known.size()) + 1;
  return of.known.try_emplace(std::move(says), next).first->second;
}

std::int32_t Census::remainder(std::size_t check, const Prefix& prefix) {
  Remainders& of = remainders_[check][prefix.depth];
  std::size_t number = 0;
  std::size_t numbers = 1;
  for (std::uint32_t axes = of.chosen; axes != 0; axes &= axes - 1) {
    const std::size_t axis = static_cast<std::size_t>(std::countr_zero(axes));
    const std::size_t size = static_cast<std::size_t>(rules_->size(axis));
    number = number * size + static_cast<std::size_t>(prefix.values[axis]);
    numbers *= size;
  }
  if (of.numbers.empty()) {
    of.numbers.assign(numbers, -1);
  }
  if (of.numbers[number] < 0) {
    of.numbers[number] = new_remainder(rules_->checks()[check], of, prefix);
  }
  return of.numbers[number];
}

void Census::count(Prefix prefix, Verdict verdict, Counts& counts) {
  count_below(prefix, verdict, 1, counts);
}

std::int64_t Census::distinct_below(const Prefix& prefix) {
  Counts counts(at(rules_->distinct()) + 1);
  count(prefix, rules_->distinct(), counts);
  return counts.back();
}

void Census::count_values(Prefix& prefix, std::size_t axis, Verdict verdict, std::int64_t times,
                          Counts& counts) {
  const std::size_t depth = prefix.depth;
  const std::int64_t index = prefix.index;
  for (std::int64_t value = 0; value < rules_->size(axis); ++value) {
    rules_->choose(axis, value, prefix);
    count_below(prefix, rules_->settle(axis, prefix, verdict), times, counts);
    prefix.depth = depth;
    prefix.index = index;
  }
}

void Census::count_below(Prefix& prefix, Verdict verdict, std::int64_t times, Counts& counts) {
  const std::size_t depth = prefix.depth;
  const std::span<const SettledRules::Check> checks = rules_->checks();
  std::uint32_t open = rules_->deciding_alone(depth, verdict);
  std::array<std::int32_t, 2 + 2 * kMaxChecks> key;
  std::size_t length = 0;
  key[length++] = static_cast<std::int32_t>(depth);
  key[length++] = verdict;
  for (std::size_t check = 0; check < checks.size() && checks[check].verdict < verdict; ++check) {
    const std::uint32_t reads = checks[check].axes & axes_from(depth);
    const std::int32_t number = reads == 0             ? 0
                                : depth < kFirstShared ? 1
                                                       : remainder(check, prefix);
    open |= number == 0 ? 0 : reads;
    if (number > 0 && remainders_[check][depth].chosen != 0) {
      key[length++] = static_cast<std::int32_t>(check);
      key[length++] = number;
    }
  }
  if (open == 0) {
    counts[at(verdict)] += times * rules_->plans_below(depth);
    return;
  }
  const std::size_t axis = static_cast<std::size_t>(std::countr_zero(open));
  // No rule asks which value the axes between have: one stands for all.
  for (std::size_t between = rules_->next_axis(depth); between < axis;
       between = rules_->next_axis(between + 1)) {
    rules_->choose(between, 0, prefix);
    times *= rules_->size(between);
  }
  if (depth < kFirstShared) {
    count_values(prefix, axis, verdict, times, counts);
    return;
  }
  const std::span<const std::int32_t> numbers(key.data(), length);
  auto found = counted_.find(numbers);
  if (found == counted_.end()) {
    Counts below(counts.size());
    count_values(prefix, axis, verdict, 1, below);
    std::vector<Entry> entries;
    for (Verdict each = 0; each <= rules_->distinct(); ++each) {
      if (below[at(each)] > 0) {
        entries.push_back({each, below[at(each)]});
      }
    }
    if (counted_.size() >= kMaxCounted) {
      counted_.clear();
    }
    found = counted_.emplace(Key(numbers.begin(), numbers.end()), std::move(entries)).first;
  }
  for (const Entry& entry : found->second) { counts[at(entry.verdict)] += times * entry.plans; }
}

}  // namespace shardplan
