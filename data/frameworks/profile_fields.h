// The fields of a FrameworkProfile that files and users set, by their names: what they are, and
// reading and writing one. name, version and memory_model are not among them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/read/json_reader.h"
#include "estimator/plan/framework_profile.h"

namespace shardplan {

std::vector<std::string> profile_field_names();

// "bool", "integer", "number" or "choice", as files and messages write it; "": no such field.
std::string profile_field_type(std::string_view name);

// Whether an enum knows the word; a file may allow fewer. False of fields that are no choice.
bool profile_field_knows(std::string_view name, const std::string& word);

// As a file would write it: "true", "8", "te_fused"; "": no such field.
std::string profile_field_text(const FrameworkProfile& profile, std::string_view name);

// The value must be of the field's type, and a word that it knows.
void set_profile_field(FrameworkProfile& profile, std::string_view name, const JsonValue& value);

}  // namespace shardplan
