#include "tools/from/slime.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace shardplan {
namespace {

constexpr std::int64_t kMostRanks = std::int64_t{1} << 22;

const Setting* setting_named(const std::vector<Setting>& settings, std::string_view name) {
  const auto found = std::ranges::find(settings.rbegin(), settings.rend(), name, &Setting::name);
  return found == settings.rend() || found->values.empty() ? nullptr : &*found;
}

// 0 for what is no count.
std::int64_t count_of(const Setting* setting) {
  std::int64_t count = 0;
  if (setting != nullptr) {
    const std::string& word = setting->values.front();
    const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), count);
    const bool is_count = problem == std::errc() && end == word.data() + word.size();
    count = is_count && count > 0 && count <= kMostRanks ? count : 0;
  }
  return count;
}

bool has_word(const std::vector<std::string>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

}  // namespace

bool is_supervised_slime(const std::vector<std::string>& arguments) {
  const auto loss = std::ranges::find(arguments, "--loss-type");
  const bool is_sft =
      has_word(arguments, "--loss-type=sft_loss") ||
      (loss != arguments.end() && loss + 1 != arguments.end() && *(loss + 1) == "sft_loss");
  return is_sft && has_word(arguments, "--debug-train-only");
}

// THUDM/slime 1cddc5d slime/backends/megatron_utils/arguments.py, _set_default_megatron_args and
// megatron_parse_args; with --use-dynamic-batch-size a microbatch is filled with samples up to
// --max-tokens-per-gpu (slime/utils/arguments.py).
RunSettings settings_of_slime(const std::vector<Setting>& words, const std::string& file,
                              std::vector<std::string>& notes) {
  RunSettings settings;
  settings.file = file;
  settings.arguments = words;
  const auto set = [&](const char* name, const std::vector<std::string>& values) {
    settings.arguments.push_back(
        {.name = name, .values = values, .place = file + ": " + std::string(name) + ": "});
  };
  const auto is_given = [&](const char* name) {
    return std::ranges::find(words, name, &Setting::name) != words.end();
  };
  for (const char* const name : {"--bf16", "--use-distributed-optimizer"}) {
    if (!is_given(name) && !(name == std::string_view("--bf16") && is_given("--fp16"))) {
      set(name, {});
    }
  }
  if (!is_given("--micro-batch-size")) {
    set("--micro-batch-size", {"1"});
  }
  const Setting* const tokens = setting_named(words, "--max-tokens-per-gpu");
  const std::int64_t cp =
      std::max<std::int64_t>(1, count_of(setting_named(words, "--context-parallel-size")));
  if (is_given("--use-dynamic-batch-size") && count_of(tokens) > 0) {
    set("--seq-length", {std::to_string(count_of(tokens) * cp)});
    notes.push_back(tokens->place + "found " + tokens->values.front() +
                    ", took each microbatch as one sequence of as many tokens a rank; "
                    "--sequence-length says otherwise");
  } else if (!is_given("--seq-length")) {
    set("--seq-length", {"4096"});
  }
  const std::int64_t nodes = count_of(setting_named(words, "--actor-num-nodes"));
  const std::int64_t gpus = count_of(setting_named(words, "--actor-num-gpus-per-node"));
  settings.num_gpus = nodes * gpus <= kMostRanks ? nodes * gpus : 0;
  return settings;
}

}  // namespace shardplan
