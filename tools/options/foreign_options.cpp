#include "tools/options/foreign_options.h"

#include <algorithm>
#include <array>
#include <optional>

#include "data/arguments/run_settings.h"
#include "data/frameworks/framework.h"
#include "data/frameworks/profile_fields.h"
#include "data/read/json_message.h"
#include "data/read/library.h"
#include "tools/options/option_table.h"
#include "tools/options/options.h"
#include "tools/options/plan_words.h"

namespace shardplan {
namespace {

struct UnknownOption {
  std::string flag;                 // as it was typed
  std::string name;                 // without dashes in front, '-' for '_'
  std::vector<std::string> values;  // what stands behind it
};

// What to say of one that is no framework's.
struct Answer {
  std::string note;       // `did you mean "--tp"?`
  std::string ours = {};  // "--tp 4"; "" where nothing stands for it
};

// Names that no table of arguments has, and those that mean several things.
struct Synonym {
  std::string_view theirs;
  std::string_view ours;
};
constexpr std::array kSynonyms = std::to_array<Synonym>({
    {.theirs = "batch", .ours = "global-batch"},
    {.theirs = "dtype", .ours = "precision"},
    {.theirs = "gpus", .ours = "num-gpus"},
    {.theirs = "local-batch-size", .ours = "micro-batch"},
    {.theirs = "ngpus", .ours = "num-gpus"},
    {.theirs = "nproc-per-node", .ours = "num-gpus"},
    {.theirs = "seq-len", .ours = "sequence-length"},
    {.theirs = "zero-stage", .ours = "zero"},
});

// A framework with options of its own, and a small run of it that every one of them may change: its
// sizes are none that people give.
struct ForeignFormat {
  RunFormat format;
  std::string_view owner;
  std::string_view file;                      // of a whole run
  std::array<std::string_view, 16> settings;  // names and values
};
constexpr std::array kFormats = std::to_array<ForeignFormat>({
    {.format = RunFormat::kMegatron,
     .owner = "Megatron-LM",
     .file = "FILE.sh",
     .settings = {"--num-layers", "32", "--hidden-size", "4096", "--num-attention-heads", "32",
                  "--seq-length", "3584", "--max-position-embeddings", "131072",
                  "--micro-batch-size", "3", "--global-batch-size", "1536", "--vocab-size",
                  "32000"}},
    {.format = RunFormat::kTransformers,
     .owner = "transformers",
     .file = "FILE.yaml or FILE.sh",
     .settings = {"max_length", "3584", "per_device_train_batch_size", "3"}},
    {.format = RunFormat::kTorchtitan,
     .owner = "torchtitan",
     .file = "FILE.toml",
     .settings = {"model.name", "llama3", "model.flavor", "8B", "training.local_batch_size", "3"}},
    {.format = RunFormat::kDeepspeed,
     .owner = "DeepSpeed",
     .file = "FILE.json",
     .settings = {"train_micro_batch_size_per_gpu", "3", "bf16.enabled", "true"}},
});

// "--Seq_Length=8k" -> "seq-length"
std::string spelled(const std::string& flag) {
  std::string name = in_lower_case(flag.substr(std::min(flag.find_first_not_of('-'), flag.size())));
  name.resize(std::min(name.find('='), name.size()));
  std::ranges::replace(name, '_', '-');
  return name;
}

std::vector<UnknownOption> unknown_among(std::string_view command,
                                         const std::vector<std::string>& arguments) {
  const std::vector<const OptionRow*> rows = options_of(command);
  std::vector<UnknownOption> unknown;
  bool is_behind_unknown = false;
  for (const std::string& word : arguments) {
    if (word.size() < 2 || word.front() != '-') {
      if (is_behind_unknown) {
        unknown.back().values.push_back(word);
      }
      continue;
    }
    const std::string flag = word.substr(0, word.find('='));
    is_behind_unknown =
        std::ranges::none_of(rows, [&](const OptionRow* row) { return "--" + row->name == flag; });
    if (is_behind_unknown) {
      unknown.push_back({.flag = flag, .name = spelled(word), .values = {}});
      if (flag.size() < word.size()) {
        unknown.back().values.push_back(word.substr(flag.size() + 1));
      }
    }
  }
  return unknown;
}

// The row of the framework's table, whatever divides the words of its name.
const ArgumentRow* row_of(const ArgumentTable& table, const std::string& name) {
  const auto found = std::ranges::find_if(
      table.rows, [&](const ArgumentRow& row) { return spelled(row.name) == name; });
  return found == table.rows.end() ? nullptr : &*found;
}

RunSettings small_run(const ForeignFormat& foreign) {
  RunSettings settings;
  settings.format = foreign.format;
  settings.file = "command line";
  settings.model = "llama3-8b";  // of files that only name it
  for (std::size_t i = 0; i + 1 < foreign.settings.size() && !foreign.settings[i].empty(); i += 2) {
    settings.arguments.push_back({.name = std::string(foreign.settings[i]),
                                  .values = {std::string(foreign.settings[i + 1])},
                                  .place = "",
                                  .is_option = true});
  }
  return settings;
}

// What no plan needs to say: it follows from the rest.
Plan without_followers(Plan plan, const Plan& base) {
  plan.dp = 0;
  plan.etp = base.etp;
  plan.schedule = base.schedule;
  return plan;
}

// What of `changed` is not in `base`, as our options.
std::string our_words(const RunReading& base, const RunReading& changed, const Library& library,
                      bool says_global_batch) {
  const Plan own = without_followers(base.plan, base.plan);
  std::string words = options_that_differ(own, without_followers(changed.plan, base.plan));
  const auto add = [&words](const std::string& name, const std::string& before,
                            const std::string& after) {
    if (before != after) {
      words += (words.empty() ? "--" : " --") + name + " " + after;
    }
  };
  add("sequence-length", std::to_string(base.job.sequence_length),
      std::to_string(changed.job.sequence_length));
  add("optimizer", std::string(name_of(base.job.optimizer)),
      std::string(name_of(changed.job.optimizer)));
  add("lora-rank", std::to_string(base.job.adapters.rank),
      std::to_string(changed.job.adapters.rank));
  if (says_global_batch) {
    add("global-batch", std::to_string(base.job.global_batch),
        std::to_string(changed.job.global_batch));
  } else if (base.job.global_batch != changed.job.global_batch) {  // else it follows from sizes
    add("num-microbatches", std::to_string(num_microbatches(base.job, base.plan)),
        std::to_string(num_microbatches(changed.job, changed.plan)));
  }
  for (const ProfileOption& option :
       profile_options(library, library.key_of(changed.job.profile))) {
    const std::string before = profile_field_text(base.job.profile, option.name);
    const std::string after = profile_field_text(changed.job.profile, option.name);
    add("set", option.name + "=" + before, option.name + "=" + after);
  }
  return words;
}

// The options of one framework as ours; "" where its reader has no use for them, alone.
std::string translated(const ForeignFormat& foreign, const ArgumentTable& table,
                       const std::vector<const UnknownOption*>& options, const Library& library) {
  const RunSettings settings = small_run(foreign);
  RunSettings changed = settings;
  bool says_global_batch = false;
  for (const UnknownOption* option : options) {
    const ArgumentRow* row = row_of(table, option->name);
    Setting setting{.name = row->name, .values = {}, .place = "", .is_option = true};
    if (row->num_values != 0) {
      setting.values = option->values.empty() ? std::vector<std::string>{"true"} : option->values;
      setting.values.resize(row->num_values == 1 ? 1 : setting.values.size());
    }
    says_global_batch = says_global_batch || option->name.find("global") != std::string::npos;
    changed.arguments.push_back(std::move(setting));
  }
  try {
    const ClusterSpec cluster = library.cluster("8x8-h100");
    return our_words(read_run(settings, cluster, library), read_run(changed, cluster, library),
                     library, says_global_batch);
  } catch (const InputError&) {  // values of the wrong kind, or one option needs another
    return "";
  }
}

std::string plain_list(const std::vector<std::string>& words) {
  std::string list;
  for (const std::string& word : words) { list += (list.empty() ? "" : ", ") + word; }
  return list;
}

// Of the command's own options and those of others.
std::optional<Answer> own_answer(std::string_view command, const UnknownOption& option) {
  std::vector<std::string> others;
  for (const OptionRow& row : option_table()) {
    if (row.name != option.name) {
      continue;
    }
    for (const std::string& other : row.commands) {
      if (other == command) {
        return Answer{.note = "did you mean \"--" + row.name + "\"?"};
      }
      if (std::ranges::find(others, other) == others.end()) {
        others.push_back(other);
      }
    }
  }
  return others.empty() ? std::nullopt
                        : std::optional(Answer{.note = "it belongs to " + plain_list(others)});
}

std::optional<Answer> synonym_answer(const UnknownOption& option) {
  if (option.name == "batch-size") {
    return Answer{.note =
                      "did you mean \"--micro-batch\", sequences of one GPU at a time, or "
                      "\"--global-batch\", those of all GPUs and a whole step?"};
  }
  if (option.name == "nodes" || option.name == "nnodes") {
    return Answer{.note = "the cluster says it, as --cluster 2x8-h100 for two nodes of 8"};
  }
  const auto* const found = std::ranges::find(kSynonyms, option.name, &Synonym::theirs);
  if (found == kSynonyms.end()) {
    return std::nullopt;
  }
  return Answer{.note = "did you mean \"--" + std::string(found->ours) + "\"?",
                .ours = option.values.empty()
                            ? ""
                            : "--" + std::string(found->ours) + " " + option.values.front()};
}

// The unknown options that are those of one framework, by its table.
struct ForeignOptions {
  const ForeignFormat* format = nullptr;
  ArgumentTable table;
  std::vector<const UnknownOption*> options;
};

// The framework that has most of them, the first of those that have as many.
ForeignOptions foreign_among(const std::vector<UnknownOption>& unknown, const Library& library) {
  ForeignOptions most;
  for (const ForeignFormat& format : kFormats) {
    ForeignOptions here{.format = &format,
                        .table = argument_table(library, framework_of(format.format)),
                        .options = {}};
    for (const UnknownOption& option : unknown) {
      if (row_of(here.table, option.name) != nullptr) {
        here.options.push_back(&option);
      }
    }
    if (here.options.size() > most.options.size()) {
      most = std::move(here);
    }
  }
  return most;
}

std::vector<std::string> flag_names(std::string_view command) {
  std::vector<std::string> names;
  for (const OptionRow* row : options_of(command)) { names.push_back("--" + row->name); }
  return names;
}

std::optional<Answer> answer_to(std::string_view command, const UnknownOption& option) {
  std::optional<Answer> answer = own_answer(command, option);
  return answer ? answer : synonym_answer(option);
}

// The hint of options that are one framework's.
std::string hint_of(const ForeignOptions& foreign, const Library& library) {
  const std::string ours = translated(*foreign.format, foreign.table, foreign.options, library);
  return (ours.empty() ? "" : "here " + ours + "; ") + "a whole run: --from " +
         std::string(foreign.format->file);
}

InputError one_unknown(std::string_view command, const UnknownOption& option) {
  const std::string message = "unknown option '" + option.flag + "' of " + std::string(command);
  if (const std::optional<Answer> answer = answer_to(command, option)) {
    return InputError(message + "; " + answer->note,
                      answer->ours.empty() ? "" : "here " + answer->ours);
  }
  const Library library;
  const std::vector<UnknownOption> alone = {option};
  const ForeignOptions foreign = foreign_among(alone, library);
  if (foreign.options.empty()) {
    return InputError(message + suggestion("--" + option.name, flag_names(command)));
  }
  const ArgumentRow& row = *row_of(foreign.table, option.name);
  return InputError(message + ", which is " + std::string(foreign.format->owner) + "'s" +
                        (row.meaning.empty() ? "" : ": " + row.meaning),
                    hint_of(foreign, library));
}

InputError several_unknown(std::string_view command, const std::vector<UnknownOption>& unknown) {
  constexpr std::size_t kMostNames = 8;
  const Library library;
  const ForeignOptions foreign = foreign_among(unknown, library);
  std::string flags;
  std::string hint;
  const auto add = [](std::string& list, const char* separator, const std::string& words) {
    list += (list.empty() ? "" : separator) + words;
  };
  for (std::size_t i = 0; i < std::min(unknown.size(), kMostNames); ++i) {
    const UnknownOption& option = unknown[i];
    add(flags, ", ", "'" + option.flag + "'");
    const bool is_foreign = std::ranges::find(foreign.options, &option) != foreign.options.end();
    const std::optional<Answer> answer = answer_to(command, option);
    if (answer && !is_foreign) {
      add(hint, "; ", option.flag + ": " + answer->note);
    }
  }
  flags += unknown.size() > kMostNames ? ", ..." : "";
  std::string message = "unknown options " + flags + " of " + std::string(command);
  if (foreign.options.size() == unknown.size()) {
    message += ", which are " + std::string(foreign.format->owner) + "'s";
  }
  if (foreign.format != nullptr) {
    add(hint, "; ", hint_of(foreign, library));
  }
  return InputError(message, hint);
}

}  // namespace

InputError unknown_options(std::string_view command, const std::vector<std::string>& arguments) {
  const std::vector<UnknownOption> unknown = unknown_among(command, arguments);
  return unknown.size() == 1 ? one_unknown(command, unknown.front())
                             : several_unknown(command, unknown);
}

}  // namespace shardplan
