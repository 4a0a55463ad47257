// The log of a run: the arguments that Megatron-LM prints when it starts (core_v0.16.1
// training/arguments.py, _print_args, at the end of validate_args), read as those of its command,
// or the configuration that torchtitan prints if job.print_config says so; else the command that a
// shell prints under `set -x`.
#include "tools/from/log.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "data/read/json_message.h"
#include "tools/from/file.h"
#include "tools/from/launcher_prefix.h"
#include "tools/from/megatron_attributes.h"
#include "tools/from/shell.h"
#include "tools/from/traced_command.h"

namespace shardplan {
namespace {

constexpr std::string_view kTitle = "------------------------ arguments ------------------------";
constexpr std::string_view kConfiguration = "Running with configs: {";
constexpr std::string_view kEnd = "-------------------- end of arguments ---------------------";

// "  tensor_model_parallel_size ...................... 2", whatever a launcher puts in front.
struct PrintedArgument {
  std::string name;
  std::string value;
  std::int64_t line = 0;
};

bool is_name_letter(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

std::optional<PrintedArgument> printed_in(std::string_view line, std::int64_t number) {
  const std::size_t dots = line.find(" ...");
  if (dots == std::string_view::npos) {
    return std::nullopt;
  }
  std::size_t begin = dots;
  while (begin > 0 && is_name_letter(line[begin - 1])) { --begin; }
  std::string_view value =
      line.substr(std::min(line.find_first_not_of('.', dots + 1), line.size()));
  value.remove_prefix(std::min(value.size(), value.find_first_not_of(' ')));
  value = value.substr(0, value.find_last_not_of(" \r") + 1);
  if (begin == dots || value.empty()) {
    return std::nullopt;
  }
  return PrintedArgument{.name = std::string(line.substr(begin, dots - begin)),
                         .value = std::string(value),
                         .line = number};
}

// What follows from the others (validate_args), or is of one process.
constexpr std::array<std::string_view, 12> kDerived = {"consumed_train_samples",
                                                       "consumed_valid_samples",
                                                       "data_parallel_size",
                                                       "iteration",
                                                       "local_rank",
                                                       "params_dtype",
                                                       "rank",
                                                       "skipped_train_samples",
                                                       "transformer_pipeline_model_parallel_size",
                                                       "variable_seq_lengths",
                                                       "virtual_pipeline_model_parallel_size",
                                                       "world_size"};

// "AttnBackend.flash" and "<CudaGraphScope.attn: 1>" are enumerated, "torch.bfloat16" is a type; a
// text within a list has quotes.
std::string as_argument(const std::string& word) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kTypes = {
      {{"torch.float32", "fp32"},
       {"torch.bfloat16", "bf16"},
       {"torch.float16", "fp16"},
       {"torch.uint8", "fp8"}}};
  for (const auto& [printed, name] : kTypes) {
    if (word == printed) {
      return std::string(name);
    }
  }
  const std::size_t dot = word.find('.');
  if (dot != std::string::npos && (word.starts_with('<') || word.starts_with("AttnBackend."))) {
    return word.substr(dot + 1, std::min(word.find(':'), word.size()) - dot - 1);
  }
  const bool is_quoted = word.size() > 1 && word.front() == '\'' && word.back() == '\'';
  return is_quoted ? word.substr(1, word.size() - 2) : word;
}

// "['p2p', 'a2a']"; anything else is one word.
std::vector<std::string> words_of(const std::string& value) {
  if (!value.starts_with('[') || !value.ends_with(']')) {
    return {as_argument(value)};
  }
  std::vector<std::string> words;
  for (std::size_t at = 1; at + 1 < value.size();) {
    const std::size_t end = std::min(value.find(", ", at), value.size() - 1);
    words.push_back(as_argument(value.substr(at, end - at)));
    at = end + 2;
  }
  return words;
}

std::optional<Setting> setting_of(const PrintedArgument& printed, const std::string& file,
                                  const ArgumentTable& table) {
  if (printed.value == "None" || std::ranges::find(kDerived, printed.name) != kDerived.end()) {
    return std::nullopt;
  }
  Setting setting{.name = argument_of_attribute(printed.name, printed.value, table),
                  .values = {},
                  .place = place(file, printed.line, "") + printed.name + ": "};
  if (setting.name.empty()) {
    return std::nullopt;
  }
  const ArgumentRow* const row = find_row(table, setting.name);
  if (row != nullptr && row->num_values == 0) {
    return setting;
  }
  if (row != nullptr && row->num_values == 1 && printed.value.starts_with('[')) {
    setting.values = {printed.value};  // "[0, 1, 1]" is one word
    std::erase(setting.values.front(), ' ');
  } else {
    setting.values = words_of(printed.value);
  }
  return setting.values.empty() ? std::nullopt : std::optional(setting);
}

// What a log says of one start of the run.
struct PrintedRun {
  std::vector<PrintedArgument> arguments = {};  // of Megatron-LM
  std::string vocabulary = {};     // of its tokenizer, before padding; "" where none is printed
  std::string configuration = {};  // of torchtitan
  std::int64_t line = 0;           // where either begins; 0: there is none
  TracedCommand command = {};      // of any start

  std::string value_of(std::string_view name) const {
    const auto found = std::ranges::find(arguments, name, &PrintedArgument::name);
    return found == arguments.end() ? "" : found->value;
  }
};

// training/tokenizer/tokenizer.py, _vocab_size_with_padding:
// " > padded vocab (size: 128000) with 256 dummy tokens (new size: 128256)".
std::string vocabulary_in(std::string_view line) {
  constexpr std::string_view kWords = "> padded vocab (size: ";
  const std::size_t at = line.find(kWords);
  const std::string_view rest = at == line.npos ? "" : line.substr(at + kWords.size());
  return std::string(rest.substr(0, rest.find_first_not_of("0123456789")));
}

// Behind the title; nothing where the log ends before the arguments do.
std::optional<PrintedRun> megatron_run(TextFile& log, std::int64_t& number) {
  PrintedRun run{.line = number};
  for (std::string line; log.next_line(line);) {
    ++number;
    if (line.find(kEnd) != std::string::npos) {
      return run;
    }
    if (std::optional<PrintedArgument> printed = printed_in(line, number)) {
      run.arguments.push_back(std::move(*printed));
    }
  }
  return std::nullopt;
}

// JSON over several lines, each behind the launcher's prefix again where it has one. Other ranks
// may write between them.
std::optional<PrintedRun> torchtitan_run(TextFile& log, std::int64_t& number,
                                         const std::string& first) {
  const std::string_view prefix = launcher_prefix(first);
  PrintedRun run{.configuration = "{\n", .line = number};
  for (std::string line; log.next_line(line);) {
    ++number;
    if (!line.starts_with(prefix)) {
      continue;
    }
    const std::string piece = line.substr(prefix.size());
    run.configuration += piece + "\n";
    if (piece.starts_with('}')) {
      return run;
    }
  }
  return std::nullopt;
}

// The last that is whole: who starts a run again lets it write to the same log.
PrintedRun last_start(TextFile& log) {
  PrintedRun last;
  TracedCommand command;
  std::int64_t number = 0;
  for (std::string line; log.next_line(line);) {
    ++number;
    command.read(line, number);
    std::optional<PrintedRun> run;
    if (line.find(kTitle) != std::string::npos) {
      run = megatron_run(log, number);
    } else if (line.find(kConfiguration) != std::string::npos) {
      run = torchtitan_run(log, number, line);
    } else if (const std::string vocabulary = vocabulary_in(line); !vocabulary.empty()) {
      last.vocabulary = vocabulary;
    }
    if (run) {
      last = std::move(*run);
    }
  }
  last.command = std::move(command);
  return last;
}

// 0 where none is printed.
std::int64_t world_size_of(const PrintedRun& printed, const std::string& file) {
  constexpr std::int64_t kMostRanks = std::int64_t{1} << 22;
  const auto found = std::ranges::find(printed.arguments, "world_size", &PrintedArgument::name);
  if (found == printed.arguments.end()) {
    return 0;
  }
  const std::string& word = found->value;
  std::int64_t world = 0;
  const auto read = std::from_chars(word.data(), word.data() + word.size(), world);
  if (read.ec != std::errc{} || read.ptr != word.data() + word.size() || world < 1 ||
      world > kMostRanks) {
    throw InputError(place(file, found->line, "") + "world_size: found \"" +
                     shown(word, Encoding::kUnchecked) + "\", expected an integer from 1 to " +
                     std::to_string(kMostRanks));
  }
  return world;
}

RunSettings megatron_settings(const PrintedRun& printed, const std::string& file,
                              const Library& library) {
  const ArgumentTable table = argument_table(library, "megatron");
  RunSettings settings;
  settings.file = file;
  for (const PrintedArgument& argument : printed.arguments) {
    if (std::optional<Setting> setting = setting_of(argument, settings.file, table)) {
      settings.arguments.push_back(std::move(*setting));
    }
  }
  const auto has = [&](const char* name) {
    return std::ranges::find(settings.arguments, name, &Setting::name) != settings.arguments.end();
  };
  const auto drop = [&](const char* name) {
    std::erase_if(settings.arguments, [name](const Setting& each) { return each.name == name; });
  };
  // What validate_args sets of the older name, and where no schedule interleaves.
  if (has("--use-megatron-fsdp")) {
    drop("--use-custom-fsdp");
  }
  if (printed.value_of("virtual_pipeline_model_parallel_size") == "None") {
    drop("--no-overlap-p2p-communication");
  }
  if (!printed.vocabulary.empty() && !has("--vocab-size") && !has("--padded-vocab-size")) {
    settings.arguments.push_back({.name = "--vocab-size",
                                  .values = {printed.vocabulary},
                                  .place = settings.file + ": padded vocab: "});
  }
  settings.num_gpus = world_size_of(printed, file);
  return settings;
}

}  // namespace

std::optional<RunSettings> settings_from_log(TextFile& log, std::vector<std::string>& notes,
                                             const Library& library, const ScriptRequest& request) {
  const PrintedRun printed = last_start(log);
  if (printed.line == 0 && printed.command.line() == 0) {
    return std::nullopt;
  }
  if (printed.line == 0) {
    notes.push_back(log.name() + ": the command of line " + std::to_string(printed.command.line()) +
                    " is the run");
    return settings_from_shell(printed.command.script(), log.name(), notes, request, library);
  }
  notes.push_back(log.name() + ": what it prints from line " + std::to_string(printed.line) +
                  " on is the run; the environment is not in the log");
  return printed.configuration.empty()
             ? megatron_settings(printed, log.name(), library)
             : section_settings(parse_json(printed.configuration, log.name(), printed.line),
                                log.name(), RunFormat::kTorchtitan);
}

}  // namespace shardplan
