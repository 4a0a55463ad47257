#include "tools/options/axes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <type_traits>
#include <vector>

#include "data/read/json_message.h"
#include "search/space/default_space.h"
#include "tools/options/option_values.h"
#include "tools/options/plan_words.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

std::string joined(const std::vector<std::string>& words, std::size_t most) {
  std::string text;
  for (std::size_t at = 0; at < std::min(words.size(), most); ++at) {
    text.append(at == 0 ? "" : ", ").append(words[at]);
  }
  if (words.size() > most) {
    text.append(", ... (").append(std::to_string(words.size())).append(")");
  }
  return text;
}

std::string value_word(std::int64_t value) {
  return std::to_string(value);
}
std::string value_word(bool value) {
  return value ? "on" : "off";
}
std::string value_word(double value) {
  return fixed(value, value == std::floor(value) ? 0 : 2);
}
std::string value_word(const Recompute& value) {
  return recompute_text(value);
}
std::string value_word(const RankOrder& value) {
  return dimensions_text(value);
}
std::string value_word(const Offload& value) {
  std::vector<std::string> parts;
  if (value.optimizer > 0) {
    parts.push_back("optimizer:" + value_word(value.optimizer));
  }
  if (value.activations) {
    parts.emplace_back("activations");
  }
  if (value.parameters) {
    parts.emplace_back("parameters");
  }
  std::string word;
  for (const std::string& part : parts) { word += (word.empty() ? "" : "+") + part; }
  return parts.empty() ? "none" : word;
}
template <class Value>
requires std::is_enum_v<Value> std::string value_word(Value value) {
  return std::string(name_of(value));
}

struct AxisRow {
  std::string_view name;
  std::vector<std::string> (*words)(const SearchSpace& space);
  void (*take)(SearchSpace& space, const SearchSpace& from);
};

template <auto Values>
constexpr AxisRow list_row(std::string_view name) {
  return {
      .name = name,
      .words =
          [](const SearchSpace& space) {
            std::vector<std::string> words;
            for (const auto& value : space.*Values) { words.push_back(value_word(value)); }
            return words;
          },
      .take = [](SearchSpace& space, const SearchSpace& from) { space.*Values = from.*Values; }};
}

constexpr std::array kRows = {
    list_row<&SearchSpace::tp>("tp"),
    list_row<&SearchSpace::cp>("cp"),
    list_row<&SearchSpace::ep>("ep"),
    list_row<&SearchSpace::etp>("etp"),
    list_row<&SearchSpace::pp>("pp"),
    list_row<&SearchSpace::vpp>("vpp"),
    AxisRow{.name = "uneven_layers",
            .words = [](const SearchSpace& space) -> std::vector<std::string> {
              return {space.uneven_layers ? "on" : "off"};
            },
            .take = [](SearchSpace& space,
                       const SearchSpace& from) { space.uneven_layers = from.uneven_layers; }},
    AxisRow{.name = "dp",
            .words =
                [](const SearchSpace& space) {
                  std::vector<std::string> words;
                  for (const std::int64_t dp : space.dp) { words.push_back(value_word(dp)); }
                  return words.empty() ? std::vector<std::string>{"what the others leave"} : words;
                },
            .take = [](SearchSpace& space, const SearchSpace& from) { space.dp = from.dp; }},
    list_row<&SearchSpace::dp_replicate>("dp_replicate"),
    list_row<&SearchSpace::zero>("zero"),
    list_row<&SearchSpace::micro_batch>("micro_batch"),
    list_row<&SearchSpace::sequence_parallel>("sequence_parallel"),
    list_row<&SearchSpace::cp_method>("cp_method"),
    list_row<&SearchSpace::recompute>("recompute"),
    list_row<&SearchSpace::schedule>("schedule"),
    list_row<&SearchSpace::rank_order>("rank_order"),
    list_row<&SearchSpace::precision>("precision"),
    list_row<&SearchSpace::grad_dtype>("grad_dtype"),
    list_row<&SearchSpace::master_dtype>("master_dtype"),
    list_row<&SearchSpace::exp_avg_dtype>("exp_avg_dtype"),
    list_row<&SearchSpace::exp_avg_sq_dtype>("exp_avg_sq_dtype"),
    list_row<&SearchSpace::offload>("offload"),
    list_row<&SearchSpace::moe_buffer_factor>("moe_buffer_factor"),
};

const AxisRow& row_named(const std::string& name) {
  std::vector<std::string> names;
  names.reserve(kRows.size());
  for (const AxisRow& row : kRows) {
    if (row.name == name) {
      return row;
    }
    names.emplace_back(row.name);
  }
  throw InputError("--axes: unknown axis '" + name + "'" + suggestion(name, names) +
                   "; all, default, or axes of: " + joined(names, names.size()));
}

template <class Value>
void join_own(std::vector<Value>& axis, const Value& own) {
  if (std::ranges::find(axis, own) == axis.end()) {
    axis.push_back(own);
  }
}

// The run's value takes the place of a single one.
template <class Value>
void take_own(std::vector<Value>& axis, const Value& own) {
  if (axis.size() == 1) {
    axis.clear();
  }
  join_own(axis, own);
}

SearchSpace with_own_plan(SearchSpace space, const std::optional<GivenRun>& run) {
  if (!run) {
    return space;
  }
  const Plan& own = run->reading.plan;
  for (const PlanSize& size : kPlanSizes) {
    if (size.name != "dp") {
      join_own(space.*size.axis, own.*size.field);
    }
  }
  join_own(space.schedule, own.schedule);
  join_own(space.cp_method, own.cp_method);
  join_own(space.recompute, own.recompute);
  take_own(space.precision, own.precision);
  take_own(space.rank_order, own.rank_order);
  take_own(space.grad_dtype, own.grad_dtype);
  take_own(space.master_dtype, own.master_dtype);
  take_own(space.exp_avg_dtype, own.exp_avg_dtype);
  take_own(space.exp_avg_sq_dtype, own.exp_avg_sq_dtype);
  take_own(space.offload, own.offload);
  return space;
}

}  // namespace

SearchSpace open_axes(const Options& options, const Job& job, const std::optional<GivenRun>& run) {
  SearchSpace space = with_own_plan(default_space(job), run);
  for (const std::string& words : all_of(options, "axes")) {
    const SearchSpace wide = with_own_plan(wide_space(job), run);
    for (std::string word : parse_list(words, "--axes")) {
      if (word == "default") {
        continue;
      }
      if (word == "all") {
        space = wide;
        continue;
      }
      std::replace(word.begin(), word.end(), '-', '_');
      if (word.starts_with("+")) {
        word.erase(0, 1);
      }
      row_named(word).take(space, wide);
    }
  }
  return space;
}

Table axes_table(const Job& job, const std::optional<GivenRun>& run, std::size_t most) {
  const SearchSpace space = with_own_plan(default_space(job), run);
  const SearchSpace wide = with_own_plan(wide_space(job), run);
  Table table = {.columns = {"axis", "default", "values", "with --axes"}};
  for (const AxisRow& row : kRows) {
    const std::vector<std::string> words = row.words(space);
    const std::vector<std::string> more = row.words(wide);
    const bool is_on = words.size() > 1 || row.name == "uneven_layers" || row.name == "dp";
    table.rows.push_back({std::string(row.name), std::string(is_on ? "searched" : "one value"),
                          joined(words, most),
                          more == words ? std::string("the same") : joined(more, most)});
  }
  return table;
}

void read_search_options(const Options& options, SearchOptions& search) {
  search.cuts = given(options, "no-bounds") ? Cuts::kNone : Cuts::kAll;
  search.distinct = !given(options, "all-plans");
  search.pareto = given(options, "pareto");
  search.takes_tight = given(options, "allow-tight");
}

}  // namespace shardplan
