// What a search says beside its table: of its first plan, of plans near to it, of other questions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/report/report.h"
#include "tools/report/terminal.h"

namespace shardplan {

struct Hint {
  std::string label;  // "faster with"
  std::string text;
};
std::vector<Hint> first_plan_hints(const SearchReport& report);
// What else could be asked: "--num-gpus 64: 9,120 tokens/s per GPU, 584 thousand of all".
std::vector<Hint> other_size_hints(const SearchReport& report);

// What distinguishes plans and has no column of its own.
std::string notes_of(const RankedPlan& ranked);

// Of the whole search: the best that any plan has.
std::string verdict_words(const SearchReport& report);
Colour verdict_colour(const SearchReport& report);

// Behind the verdict where plans are shown that break the rule, and where none is shown.
inline constexpr std::string_view kOverWords =
    "no plan keeps the rule; the card holds these (--memory-threshold none: no rule)";
std::string no_plan_words(const SearchReport& report);

}  // namespace shardplan
