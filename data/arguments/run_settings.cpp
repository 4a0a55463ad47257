#include "data/arguments/run_settings.h"

#include <algorithm>
#include <cmath>

#include "data/arguments/deepspeed.h"
#include "data/arguments/megatron.h"
#include "data/arguments/nanotron.h"
#include "data/arguments/torchtitan.h"
#include "data/arguments/transformers.h"
#include "data/frameworks/framework.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

std::string text_of(const JsonValue& value, const std::string& file) {
  switch (value.kind) {
    case JsonKind::kString: return value.string;
    case JsonKind::kInteger: return std::to_string(value.integer);
    case JsonKind::kReal: return exact_text(value.real);
    case JsonKind::kBool: return value.boolean ? "true" : "false";
    default: break;
  }
  throw InputError(place(file, value.line, value.pointer) + "found " + describe(value) +
                   ", expected a string or a number");
}

void add_member(std::vector<Setting>& settings, const JsonMember& member, const std::string& file) {
  const JsonValue& value = member.value;
  if (value.kind == JsonKind::kNull || (value.kind == JsonKind::kBool && !value.boolean)) {
    return;  // an argument that is not given
  }
  Setting setting{
      .name = member.name, .values = {}, .place = place(file, value.line, value.pointer)};
  if (value.kind == JsonKind::kArray) {
    for (const JsonValue& item : value.items) { setting.values.push_back(text_of(item, file)); }
  } else if (value.kind != JsonKind::kBool) {
    setting.values = bracketed_words(text_of(value, file));
  }
  settings.push_back(std::move(setting));
}

bool is_name(const std::string& word) {
  return word.size() > 2 && word.starts_with("--");
}

// ["--tp", "2", "--bf16"]
std::vector<Setting> settings_of_words(const JsonValue& list, const std::string& file) {
  std::vector<Setting> settings;
  for (const JsonValue& item : list.items) {
    const std::string word = text_of(item, file);
    if (is_name(word)) {
      const std::size_t equals = word.find('=');
      settings.push_back({.name = word.substr(0, equals),
                          .values = {},
                          .place = place(file, item.line, item.pointer) + word + ": "});
      if (equals != std::string::npos) {
        settings.back().values.push_back(word.substr(equals + 1));
      }
    } else if (settings.empty()) {
      throw InputError(place(file, item.line, item.pointer) + "found \"" +
                       shown(word, Encoding::kUtf8) + "\", expected an argument such as --bf16");
    } else {
      settings.back().values.push_back(word);
    }
  }
  return settings;
}

// "5e8" is a count too.
std::string number_or_text(const JsonValue& value, const std::string& file) {
  constexpr double kMostExact = 9007199254740992;  // 2^53
  const bool is_whole = value.kind == JsonKind::kReal && std::abs(value.real) < kMostExact &&
                        std::trunc(value.real) == value.real;
  return is_whole ? std::to_string(static_cast<std::int64_t>(value.real)) : text_of(value, file);
}

// The values of a list; of objects, as data sets are, none has a size.
std::vector<std::string> texts_of(const JsonValue& list, const std::string& file) {
  std::vector<std::string> texts;
  for (const JsonValue& item : list.items) {
    if (item.kind == JsonKind::kObject || item.kind == JsonKind::kArray) {
      return {"[...]"};
    }
    texts.push_back(text_of(item, file));
  }
  return texts;
}

// In one word, as the Trainer's and DeepSpeed's tables have them: "0.9, 0.95".
void join_lists(std::vector<Setting>& settings) {
  for (Setting& setting : settings) {
    std::string list;
    for (const std::string& value : setting.values) { list += (list.empty() ? "" : ", ") + value; }
    setting.values = {list};
  }
}

void add_section(std::vector<Setting>& settings, const JsonValue& section, const std::string& path,
                 const std::string& file) {
  for (const JsonMember& member : section.members) {
    const JsonValue& value = member.value;
    const std::string name = path + (path.empty() ? "" : ".") + member.name;
    if (value.kind == JsonKind::kObject) {
      add_section(settings, value, name, file);
      continue;
    }
    Setting setting{.name = name, .values = {}, .place = place(file, value.line, "") + name + ": "};
    if (value.kind == JsonKind::kArray) {
      setting.values = texts_of(value, file);
    } else if (value.kind != JsonKind::kNull) {
      setting.values = {number_or_text(value, file)};
    }
    if (!setting.values.empty()) {
      settings.push_back(std::move(setting));
    }
  }
}

}  // namespace

std::string framework_of(RunFormat format) {
  switch (format) {
    case RunFormat::kMegatron: return "megatron";
    case RunFormat::kTorchtitan: return "torchtitan";
    case RunFormat::kNanotron: return "nanotron";
    case RunFormat::kDeepspeed: return "deepspeed";
    case RunFormat::kTransformers: return "transformers";
  }
  throw std::logic_error("framework_of: unknown format");
}

RunSettings section_settings(const JsonValue& value, const std::string& file, RunFormat format) {
  RunSettings settings;
  settings.format = format;
  settings.file = file;
  settings.is_configuration = true;
  add_section(settings.arguments, value, "", file);
  if (format == RunFormat::kDeepspeed || format == RunFormat::kTransformers) {
    join_lists(settings.arguments);
  }
  return settings;
}

std::vector<std::string> bracketed_words(const std::string& text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']' ||
      text.find_first_of("*+,") != std::string::npos) {
    return {text};
  }
  std::vector<std::string> words;
  std::size_t start = 1;
  while ((start = text.find_first_not_of(' ', start)) < text.size() - 1) {
    const std::size_t end = std::min(text.find(' ', start), text.size() - 1);
    words.push_back(text.substr(start, end - start));
    start = end;
  }
  return words;
}

RunSettings run_settings(const JsonValue& value, const std::string& file) {
  RunSettings settings;
  settings.file = file;
  ObjectReader reader(value, file);
  const JsonValue& arguments = reader.value("arguments");
  if (arguments.kind == JsonKind::kArray) {
    settings.arguments = settings_of_words(arguments, file);
  } else {
    const ObjectReader any_names(arguments, file);  // refuses what is no object
    for (const JsonMember& member : arguments.members) {
      add_member(settings.arguments, member, file);
    }
  }
  if (reader.has("environment") && !reader.is_null("environment")) {
    const ObjectReader any_names(reader.value("environment"), file);
    for (const JsonMember& member : reader.value("environment").members) {
      settings.environment.push_back(
          {.name = member.name,
           .values = {text_of(member.value, file)},
           .place = place(file, member.value.line, member.value.pointer)});
    }
  }
  reader.ignore("environment");
  settings.num_gpus = reader.integer_or("num_gpus", 0, 1, std::int64_t{1} << 22);
  reader.finish();
  return settings;
}

std::vector<Setting> resized_arguments(const RunSettings& settings) {
  std::vector<Setting> all = settings.arguments;
  all.insert(all.end(), settings.sizes.begin(), settings.sizes.end());
  return all;
}

RunReading read_run(const RunSettings& settings, const ClusterSpec& cluster,
                    const Library& library) {
  switch (settings.format) {
    case RunFormat::kMegatron: return read_megatron_run(settings, cluster, library);
    case RunFormat::kTorchtitan: return read_torchtitan_run(settings, cluster, library);
    case RunFormat::kNanotron: return read_nanotron_run(settings, cluster, library);
    case RunFormat::kDeepspeed: return read_deepspeed_run(settings, cluster, library);
    case RunFormat::kTransformers: return read_transformers_run(settings, cluster, library);
  }
  throw std::logic_error("read_run: unknown format");
}

void refuse(RunReading& run, const std::string& what) {
  if (run.unsupported.empty()) {
    run.unsupported = "unsupported: " + what;
  }
}

void want(RunReading& run, const std::string& name, const std::string& word,
          const Library& library) {
  const std::string reason = try_option(run.job.profile, name, word, library);
  if (!reason.empty()) {
    refuse(run, reason);
  }
}

bool takes_word(const RunReading& run, const std::string& name, const std::string& word,
                const Library& library) {
  const std::vector<ProfileOption> known =
      profile_options(library, library.key_of(run.job.profile));
  const auto found = std::ranges::find(known, name, &ProfileOption::name);
  return found != known.end() && (found->choices.empty() ||
                                  std::ranges::find(found->choices, word) != found->choices.end());
}

bool take_profile(RunReading& run, const Library& library) {
  run.has_profile = library.known_framework(run.framework);
  if (run.has_profile) {
    run.job.profile = library.framework(run.framework);
  } else {
    refuse(run, "no profile for the framework '" + run.framework + "'");
  }
  return run.has_profile;
}

std::string try_option(FrameworkProfile& profile, const std::string& name, const std::string& word,
                       const Library& library) {
  return try_option(profile, name, word, profile_options(library, library.key_of(profile)));
}

}  // namespace shardplan
