#include "tools/options/search_axes.h"

#include <algorithm>

#include "data/read/json_message.h"
#include "tools/options/option_values.h"
#include "tools/options/plan_words.h"
#include "tools/options/words.h"

namespace shardplan {
namespace {

struct AxisWord {
  std::string place;  // opens messages: "--fix tp=8"
  std::string axis;
  std::string value;
};

AxisWord split_word(const std::string& flag, const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == word.size()) {
    throw InputError("--" + flag + ": found '" + word + "', expected AXIS=VALUE such as tp=8");
  }
  std::string axis = word.substr(0, equals);
  std::replace(axis.begin(), axis.end(), '-', '_');
  return {.place = "--" + flag + " " + word, .axis = axis, .value = word.substr(equals + 1)};
}

const PlanSize* size_named(std::string_view axis) {
  for (const PlanSize& size : kPlanSizes) {
    if (size.name == axis) {
      return &size;
    }
  }
  return nullptr;
}

std::int64_t parse_size(const PlanSize& size, const std::string& word, const std::string& place) {
  constexpr std::int64_t kMaxSize = std::int64_t{1} << 22;
  const bool is_zero_stage = size.name == "zero";
  return parse_count(word, is_zero_stage ? 0 : 1, is_zero_stage ? 3 : kMaxSize, place);
}

template <class Value>
std::vector<Value> parse_values(const std::vector<std::string>& words, const std::string& place) {
  std::vector<Value> values;
  values.reserve(words.size());
  for (const std::string& word : words) {
    values.push_back(
        value_of<Value>(parse_choice(word, words_of(names_of(Value{})), place)).value());
  }
  return values;
}

std::vector<bool> parse_switches(const std::vector<std::string>& words, const std::string& place) {
  std::vector<bool> values;
  values.reserve(words.size());
  for (const std::string& word : words) {
    values.push_back(parse_choice(word, {"on", "off"}, place) == "on");
  }
  return values;
}

std::vector<DType> parse_dtypes(const std::vector<std::string>& words, const std::string& place) {
  std::vector<DType> values;
  values.reserve(words.size());
  for (const std::string& word : words) {
    values.push_back(dtype_named(parse_choice(word, state_dtype_words(), place)).value());
  }
  return values;
}

std::vector<double> parse_numbers(const std::vector<std::string>& words, double low, double high,
                                  const std::string& place) {
  std::vector<double> values;
  values.reserve(words.size());
  for (const std::string& word : words) { values.push_back(parse_number(word, low, high, place)); }
  return values;
}

// Shares of the optimizer state in host memory, also in the words of --list-axes:
// "optimizer:1+parameters".
Offload parse_offload(const std::string& word, const std::string& place) {
  constexpr std::string_view kOptimizer = "optimizer:";
  Offload offload;
  for (std::size_t start = 0; start < word.size();) {
    const std::size_t end = std::min(word.find('+', start), word.size());
    const std::string part = word.substr(start, end - start);
    start = end + 1;
    if (part == "parameters") {
      offload.parameters = true;
    } else if (part != "none") {
      const std::string share =
          part.starts_with(kOptimizer) ? part.substr(kOptimizer.size()) : part;
      offload.optimizer = parse_number(share, 0, 1, place);
    }
  }
  return offload;
}

std::vector<Offload> parse_offloads(const std::vector<std::string>& words,
                                    const std::string& place) {
  std::vector<Offload> values;
  values.reserve(words.size());
  for (const std::string& word : words) { values.push_back(parse_offload(word, place)); }
  return values;
}

// A granularity keeps all its variants of the default space; "full/uniform/1" keeps one.
std::vector<Recompute> keep_recomputes(const std::vector<Recompute>& known,
                                       const std::vector<std::string>& words,
                                       const std::string& place) {
  std::vector<std::string> choices = words_of(kRecomputeGranularities);
  choices.reserve(choices.size() + known.size());
  for (const Recompute& recompute : known) { choices.push_back(recompute_text(recompute)); }
  std::vector<Recompute> kept;
  for (const std::string& word : words) {
    const std::string choice = parse_choice(word, choices, place);
    for (const Recompute& recompute : known) {
      const bool is_new = std::find(kept.begin(), kept.end(), recompute) == kept.end();
      if (is_new &&
          (choice == name_of(recompute.granularity) || choice == recompute_text(recompute))) {
        kept.push_back(recompute);
      }
    }
  }
  if (kept.empty()) {
    throw InputError(place + ": the framework's search has no such recomputation");
  }
  return kept;
}

std::vector<std::string> axis_names() {
  std::vector<std::string> names;
  names.reserve(kPlanSizes.size() + 13);
  for (const PlanSize& size : kPlanSizes) { names.push_back(std::string(size.name)); }
  for (const char* name : {"sequence_parallel", "schedule", "cp_method", "recompute", "precision",
                           "grad_dtype", "master_dtype", "exp_avg_dtype", "exp_avg_sq_dtype",
                           "offload", "moe_buffer_factor", "rank_order", "uneven_layers"}) {
    names.push_back(name);
  }
  return names;
}

InputError unknown_axis(const AxisWord& word) {
  std::string names;
  for (const std::string& name : axis_names()) { names += (names.empty() ? "" : ", ") + name; }
  return InputError(word.place + ": unknown axis '" + word.axis + "'" +
                    suggestion(word.axis, axis_names()) + "; axes are " + names);
}

// Exactly these values.
void set_axis(SearchSpace& space, const AxisWord& word, const std::vector<std::string>& values) {
  if (const PlanSize* size = size_named(word.axis)) {
    std::vector<std::int64_t> numbers;
    numbers.reserve(values.size());
    for (const std::string& value : values) {
      numbers.push_back(parse_size(*size, value, word.place));
    }
    space.*size->axis = numbers;
  } else if (word.axis == "sequence_parallel") {
    space.sequence_parallel = parse_switches(values, word.place);
  } else if (word.axis == "schedule") {
    space.schedule = parse_values<Schedule>(values, word.place);
  } else if (word.axis == "cp_method") {
    space.cp_method = parse_values<CpMethod>(values, word.place);
  } else if (word.axis == "recompute") {
    space.recompute = keep_recomputes(space.recompute, values, word.place);
  } else if (word.axis == "precision") {
    space.precision = parse_values<Precision>(values, word.place);
  } else if (word.axis == "grad_dtype") {
    space.grad_dtype = parse_dtypes(values, word.place);
  } else if (word.axis == "master_dtype") {
    space.master_dtype = parse_dtypes(values, word.place);
  } else if (word.axis == "exp_avg_dtype") {
    space.exp_avg_dtype = parse_dtypes(values, word.place);
  } else if (word.axis == "exp_avg_sq_dtype") {
    space.exp_avg_sq_dtype = parse_dtypes(values, word.place);
  } else if (word.axis == "offload") {
    space.offload = parse_offloads(values, word.place);
  } else if (word.axis == "moe_buffer_factor") {
    space.moe_buffer_factor = parse_numbers(values, 1, 4096, word.place);
  } else if (word.axis == "uneven_layers") {
    space.uneven_layers = parse_switches(values, word.place).front();
  } else {
    throw unknown_axis(word);
  }
}

}  // namespace

std::string axis_of(const std::string& flag, const std::string& text) {
  return split_word(flag, text).axis;
}

void fix_axis(SearchSpace& space, const std::string& text) {
  const AxisWord word = split_word("fix", text);
  if (word.axis == "rank_order") {
    space.rank_order = {parse_rank_order(word.value, word.place)};
    return;
  }
  set_axis(space, word, {word.value});
}

void restrict_axis(SearchSpace& space, const std::string& text) {
  const AxisWord word = split_word("range", text);
  const std::size_t dots = word.value.find("..");
  if (dots == std::string::npos) {
    set_axis(space, word, parse_list(word.value, word.place));
    return;
  }
  const PlanSize* size = size_named(word.axis);
  if (size == nullptr) {
    throw InputError(word.place + ": '" + word.axis + "' takes a list of values, not a range");
  }
  const std::int64_t low = parse_size(*size, word.value.substr(0, dots), word.place);
  const std::int64_t high = parse_size(*size, word.value.substr(dots + 2), word.place);
  if (low > high) {
    throw InputError(
        word.place + ": the range is empty; the lower end comes first",
        "--range " + word.axis + "=" + std::to_string(high) + ".." + std::to_string(low));
  }
  std::vector<std::int64_t>& axis = space.*size->axis;
  if (axis.empty()) {  // dp: whatever follows from the other sizes
    constexpr std::int64_t kMostValues = 4096;
    if (high - low >= kMostValues) {
      throw InputError(word.place + ": found " + std::to_string(high - low + 1) +
                       " values, expected at most " + std::to_string(kMostValues));
    }
    for (std::int64_t value = low; value <= high; ++value) { axis.push_back(value); }
  }
  std::erase_if(axis, [low, high](std::int64_t value) { return value < low || value > high; });
  if (axis.empty()) {
    throw InputError(word.place + ": no value of " + word.axis +
                     " worth trying lies there; give exact values, as in " + word.axis + "=" +
                     std::to_string(low));
  }
}

}  // namespace shardplan
