#include "tools/options/given_model.h"

#include <algorithm>

#include "data/models/fields.h"
#include "data/read/json_message.h"

namespace shardplan {

std::vector<std::string> model_words(const ModelFile& model, const Options& options,
                                     const std::vector<ProfileOption>& switches) {
  const std::vector<std::string> keys = model_field_names(model.config.json);
  std::vector<std::string> switch_names;
  switch_names.reserve(switches.size());
  for (const ProfileOption& option : switches) { switch_names.push_back(option.name); }
  std::vector<std::string> words;
  for (const std::string& word : all_of(options, "set")) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (equals == std::string::npos || std::ranges::find(switch_names, key) != switch_names.end()) {
      continue;
    }
    if (std::ranges::find(keys, key) != keys.end()) {
      words.push_back(word);
    } else if (nearest_name(key, switch_names).empty() && !nearest_name(key, keys).empty()) {
      throw InputError("--set " + word + ": found a name that neither the framework nor " +
                       model.config.file + " has, expected one of theirs" + suggestion(key, keys));
    }
  }
  return words;
}

ModelConfig model_of(ModelFile model, const Options& options,
                     const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    set_model_field(model.config.json, word.substr(0, equals), word.substr(equals + 1),
                    "--set " + word);
  }
  if (!words.empty()) {
    model.name += " with " + joined(words);
    model.config.file += " with --set " + joined(words);
  }
  return read_model_config(model.config.json, model.name, model.config.file,
                           given(options, "strict") ? UnknownKeys::kRefuse : UnknownKeys::kWarn);
}

}  // namespace shardplan
