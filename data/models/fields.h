// Values of a config.json that are given beside the file.
#pragma once

#include <string>
#include <vector>

#include "data/read/json_reader.h"

namespace shardplan {

// The keys that the file has: at the top and, of a model of text and images, of its text.
std::vector<std::string> model_field_names(const JsonValue& config);

// Puts the value of a word in its place: of a text as it stands, else as a count or JSON. Lists
// with an entry for every layer end with fewer layers where those do. The key must be there;
// `place` opens the message of a word that is no JSON.
void set_model_field(JsonValue& config, const std::string& key, const std::string& word,
                     const std::string& place);

}  // namespace shardplan
