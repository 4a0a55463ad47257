// RunArguments and environment of a training framework: a table that says of each what it does to
// memory, and the settings of one run held against it. Nothing that a run sets is dropped silently.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/library.h"
#include "estimator/plan/plan.h"

namespace shardplan {

enum class SettingEffect {
  kRead,        // becomes a field of the model, the plan, the training or the profile
  kRefused,     // changes memory in a way that no row describes
  kNotCounted,  // small, or outside the step: left out of the totals
  kNone,        // no effect on memory
  kUnknown,     // in no table
};
inline constexpr std::array<NamedValue<SettingEffect>, 5> kSettingEffects = {{
    {.value = SettingEffect::kRead, .name = "read"},
    {.value = SettingEffect::kRefused, .name = "refused"},
    {.value = SettingEffect::kNotCounted, .name = "not_counted"},
    {.value = SettingEffect::kNone, .name = "none"},
    {.value = SettingEffect::kUnknown, .name = "unknown"},
}};
constexpr const auto& names_of(SettingEffect) {
  return kSettingEffects;
}

inline constexpr std::int64_t kOneOrMore = -1;

// What the table says of one argument.
struct ArgumentRow {
  std::string name;             // "--tensor-model-parallel-size", "training.seq_len", "NCCL_*"
  std::int64_t num_values = 0;  // 0: a switch; kOneOrMore
  SettingEffect effect = SettingEffect::kUnknown;
  std::string meaning;
  std::string source;
  std::vector<std::string> harmless;  // kRefused: values that change nothing
};

// One file of data/arguments.
struct ArgumentTable {
  std::string version;
  std::vector<ArgumentRow> rows;  // by name
};
ArgumentTable argument_table(const Library& library, const std::string& name);
// nullptr if it is in no row; a row "NCCL_*" stands for what begins so and has no row of its own.
const ArgumentRow* find_row(const ArgumentTable& table, std::string_view name);

// One argument or variable as a run sets it.
struct Setting {
  std::string name;
  std::vector<std::string> values;  // none: a switch
  std::string place;                // opens messages: "run.sh:12: --bf16: "
  bool is_option = false;           // of our own command line: 32k is 32768
};

// How one setting was taken.
struct SettingUse {
  std::string name;
  std::string value;
  SettingEffect effect = SettingEffect::kUnknown;
  std::string meaning;
};

// The settings of a run by name, each held against its row. The last of a name counts, as for
// argparse. Getters throw InputError for values of the wrong kind.
class RunArguments {
 public:
  // Throws InputError where the number of values is not the row's. `file`: as messages name it.
  RunArguments(std::string file, std::vector<Setting> settings, const ArgumentTable& table);

  bool has(std::string_view name) const;
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t low,
                                      std::int64_t high) const;
  std::int64_t integer_or(std::string_view name, std::int64_t fallback, std::int64_t low,
                          std::int64_t high) const;
  std::int64_t required_integer(std::string_view name, std::int64_t low, std::int64_t high) const;
  double number_or(std::string_view name, double fallback, double low, double high) const;
  std::string text_or(std::string_view name, std::string_view fallback) const;
  std::vector<std::string> texts(std::string_view name) const;
  // One of the words.
  std::string word_or(std::string_view name, std::string_view fallback,
                      const std::vector<std::string>& words) const;

  // What opens messages about it: "run.sh:12: --bf16: ".
  std::string place(std::string_view name) const;
  InputError error(std::string_view name, const std::string& found_expected) const;
  const std::vector<SettingUse>& uses() const { return uses_; }
  // A refused setting without effect here, for this reason.
  void excuse(std::string_view name, const std::string& reason);
  // "unsupported: --cuda-graph-impl: ..." for the first refused setting, else "".
  std::string first_refused() const;

 private:
  const Setting* find(std::string_view name) const;

  std::string file_;
  std::vector<Setting> settings_;
  std::vector<SettingUse> uses_;
};

}  // namespace shardplan
